// Ties the page together: keys, copying, light and dark, pages in a file, a run that goes on.
"use strict";
(({ main, inFile, tag, place, go }, { charts, tokens, tables, samples }) => {
  const keys = document.getElementById("keys"), root = document.documentElement, title = document.title;

  function theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("rolltape-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
    charts.repaint();
  }
  function key(event) {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    const link = [...main.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
    const select = main.querySelector("#color"), field = main.querySelector('input[type="search"]');
    if (link) go(link.getAttribute("href"));
    else if (event.key === "j" || event.key === "k") tables.move(event.key === "j" ? 1 : -1);
    else if (event.key === "Enter" && !event.target.closest("a, button, summary")) tables.openRow();
    else if (event.key === "c" && select) { select.selectedIndex = (select.selectedIndex + 1) % select.length; select.dispatchEvent(new Event("change")); }
    else if (event.key === "/" && field) { field.focus(); event.preventDefault(); }
    else if (event.key === "m" && main.querySelector("#note textarea")) { main.querySelector("#note textarea").focus(); event.preventDefault(); }
    else if (event.key === "t") theme();
    else if (event.key === "?") keys.showModal();
  }
  async function copy(button) {
    const what = button.dataset.copy, box = main.querySelector("#" + what);
    const text = what === "link" ? location.href
      : what === "ids" ? [...main.querySelectorAll('.tokens[data-side="response"]')].flatMap((box) => (box.packed ? [...box.packed.ids] : [...box.querySelectorAll(".tok")].map((token) => token.dataset.id))).join(", ")
      : [...box.querySelectorAll("pre")].map((pre) => pre.textContent).join("\n\n");
    const said = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed to copy"; }
    setTimeout(() => { button.textContent = said; }, 1200);
  }
  function openStep(strip, x) {
    const { href, first, last } = strip.closest(".strips").dataset, edge = strip.getBoundingClientRect();
    const steps = Number(last) - Number(first) + 1;
    if (href) go(href.replace("{}", Math.floor(Number(first) + ((x - edge.left) / edge.width) * steps)));
  }

  // Keys can scroll what is wider than its place.
  function reachable(root) {
    for (const box of root.querySelectorAll(".scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }

  // A part of a page that takes the server a while.
  async function fetchPart(box) {
    for (;;) {
      let answer;
      try { answer = await (await fetch(box.dataset.part)).json(); } catch { return; }
      if (!box.isConnected) return;
      if (answer.part !== undefined) {
        // A parsed document runs nothing, and the policy of the page allows no script of its own.
        box.replaceChildren(...new DOMParser().parseFromString(answer.part, "text/html").body.childNodes);
        reachable(box);
        if (answer.value !== undefined) box.dataset.v = answer.value;
        box.dataset.done = "1";
        return;
      }
      if (answer.steps) box.querySelector(".wait").textContent = `${box.dataset.doing || "comparing"} … step ${answer.done} of ${answer.steps}`;
      await new Promise((done) => setTimeout(done, 250));
    }
  }

  // Many small ones, the first first: all at once they would keep the server from everything else.
  async function fetchParts(root) {
    for (const box of root.querySelectorAll("[data-part]:not([data-done])")) if (box.isConnected) await fetchPart(box);
  }

  // --- a page has come
  function ready() {
    main.querySelectorAll("[data-part]:not([data-in-turn] *)").forEach(fetchPart);
    main.querySelectorAll("[data-in-turn]").forEach(fetchParts);
    samples.ready(fetchParts);
    reachable(main);
    charts.ready();
    tables.ready();
    tokens.ready();
  }
  function route() {
    const { path } = place();
    const pages = [...document.querySelectorAll("template[data-path]")];
    const page = pages.find((one) => one.dataset.path === path) || (path === "/" ? pages[0] : null);
    if (page) { main.replaceChildren(page.content.cloneNode(true)); document.title = page.dataset.title + " – Rolltape"; }
    else main.replaceChildren(tag("h1", "", "This page is not in this file"), tag("p", "", "It was made of some steps of a run only."));
    scrollTo(0, 0);
    ready();
  }
  // What the header and the tab say of a run that goes on.
  function told(text, mark) {
    document.getElementById("live").textContent = text;
    document.title = `${mark} ${title}`;
  }
  async function follow() {
    try {
      const answer = await (await fetch("/state")).json();
      told("following", answer.last === null ? "▶" : `▶ step ${answer.last} ·`);
      const writing = main.contains(document.activeElement) && /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
      if (answer.version !== document.body.dataset.follow && !writing) {
        const text = await (await fetch(location.href)).text();
        // A parsed document runs nothing; only what is in its main part is taken over.
        const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
        if (fresh) { main.replaceChildren(...fresh.childNodes); document.body.dataset.follow = answer.version; ready(); }
      }
    } catch { told("the server is gone", "✕"); }
    setTimeout(follow, 1000);
  }

  try { const kept = localStorage.getItem("rolltape-theme"); if (kept === "dark" || kept === "light") root.dataset.theme = kept; } catch { /* as above */ }
  document.addEventListener("keydown", key);
  document.getElementById("theme").addEventListener("click", theme);
  document.getElementById("help").addEventListener("click", () => keys.showModal());
  main.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]"), strip = event.target.closest(".strip svg");
    if (button) copy(button);
    if (strip) openStep(strip, event.clientX);
  });
  if (inFile) {
    main.addEventListener("submit", (event) => {
      event.preventDefault();
      go("#" + place().path + "?" + new URLSearchParams(new FormData(event.target)));
    });
    addEventListener("hashchange", route);
    route();
  } else ready();
  if (document.body.dataset.follow !== undefined) setTimeout(follow, 1000);
})(rolltape.page, rolltape);
