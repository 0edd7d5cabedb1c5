// Rows: sorted by a click, moved through by keys, and searched where there is no server to ask.
"use strict";
rolltape.tables = (({ main, inFile, tag, place, setQuery, go }) => {
  function sort(table, name, down) {
    const heads = [...table.tHead.rows[0].cells];
    const column = heads.findIndex((head) => head.dataset.sort === name);
    if (column < 0) return;
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => { const text = row.cells[column].dataset.v || ""; const n = Number(text.replaceAll(",", "")); return text !== "" && !Number.isNaN(n) ? n : text; };
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    const compare = (a, b) => (a === "" ? 1 : b === "" ? -1 : typeof a === "number" && typeof b === "number" ? (down ? b - a : a - b) : (down ? -1 : 1) * String(a).localeCompare(String(b)));
    rows.sort((a, b) => compare(a[0], b[0]));
    table.tBodies[0].append(...rows.map((pair) => pair[1]));
  }
  function searchHere() {
    // In a file there is no server to ask: a group is kept if its row, or a page of one of its samples, has the words.
    const { query } = place(), words = query.get("q") || "";
    const form = main.querySelector("form.search");
    if (!form || !inFile) return;
    form.elements.q.value = words;
    form.elements.regex.checked = query.get("regex") === "1";
    if (!words) return;
    let test;
    try { const found = query.get("regex") === "1" ? new RegExp(words) : null; test = (text) => (found ? found.test(text) : text.toLowerCase().includes(words.toLowerCase())); }
    catch { form.append(tag("span", "warn", "this is not a regular expression")); return; }
    const pages = new Map([...document.querySelectorAll("template[data-path]")].map((one) => [one.dataset.path, one]));
    let kept = 0;
    for (const row of main.querySelectorAll("#groups tbody tr")) {
      const links = [...row.querySelectorAll("a")].map((link) => link.getAttribute("href").slice(1));
      const texts = [...new Set(links)].map((link) => pages.get(link)).filter(Boolean).map((one) => [...one.content.querySelectorAll(".conversation pre")].map((pre) => pre.textContent).join("\n"));
      row.hidden = ![row.textContent, ...texts].some(test);
      kept += row.hidden ? 0 : 1;
    }
    form.append(tag("span", "", `${kept} groups`));
  }

  function items() {
    const rows = [...main.querySelectorAll(".rows tbody tr")].filter((row) => !row.hidden && row.querySelector("a"));
    return rows.length ? rows : [...main.querySelectorAll(".steps .item")];
  }
  function move(by) {
    const all = items();
    if (!all.length) return;
    const now = all.findIndex((item) => item.classList.contains("at"));
    const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
    all.forEach((item) => item.classList.toggle("at", item === next));
    next.scrollIntoView({ block: "nearest" });
    setQuery("row", String(all.indexOf(next)));
  }
  function openRow() {
    const at = main.querySelector(".at");
    if (at) go((at.matches("a") ? at : at.querySelector("a.open, a")).getAttribute("href"));
  }
  function ready() {
    const { query } = place(), table = main.querySelector("table.sortable"), row = query.get("row");
    if (table && query.get("sort")) sort(table, query.get("sort"), query.get("dir") === "down");
    searchHere();
    if (row !== null && items()[Number(row)]) items()[Number(row)].classList.add("at");
  }
  main.addEventListener("click", (event) => {
    const head = event.target.closest("th[data-sort]");
    if (!head) return;
    const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.classList.contains("num") && head.dataset.sort !== "order");
    sort(head.closest("table"), head.dataset.sort, down);
    setQuery("sort", head.dataset.sort);
    setQuery("dir", down ? "down" : "");
  });

  return { ready, move, openRow };
})(rolltape.page);
