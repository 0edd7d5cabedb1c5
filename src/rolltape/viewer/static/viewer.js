// Draws plots, colours tokens, sorts tables, moves by keys. Text is only ever set as text, never as markup.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const main = document.getElementById("main");
  const tip = document.getElementById("tip");
  const inFile = document.body.hasAttribute("data-file");

  function make(name, attributes, ...inside) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  }
  function tag(name, className, text) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }
  const read = (element) => JSON.parse(element.textContent);
  const short = (value, digits = 5) => (typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value));

  // --- where we are: in a file of all pages the address is behind the #
  function place() {
    if (!inFile) return { path: location.pathname, query: new URLSearchParams(location.search) };
    const [path, query] = (location.hash.slice(1) || "/").split("?");
    return { path, query: new URLSearchParams(query || "") };
  }
  function setQuery(name, value) {
    const { path, query } = place();
    if (value) query.set(name, value);
    else query.delete(name);
    const text = query.toString();
    history.replaceState(history.state, "", (inFile ? "#" : "") + path + (text ? "?" + text : ""));
  }
  function go(address) {
    if (address) location.href = address;
  }

  // --- plots
  function ticks(low, high) {
    const span = high - low || Math.abs(high) || 1;
    const raw = span / 4;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return found;
  }
  function draw(figure) {
    const script = figure.querySelector("script");
    const chart = read(script);
    figure.querySelectorAll("svg, .read, .keys").forEach((old) => old.remove());
    const W = Math.max(figure.clientWidth - 20, 200), H = 150;
    const box = { left: 46, right: W - 6, top: 6, bottom: H - 18 };
    const number = (value) => typeof value === "number";
    const all = chart.lines.flatMap((line) => line.points);
    const [from, to] = figure.zoom || [-Infinity, Infinity];
    const seen = all.filter((p) => p[0] >= from && p[0] <= to);
    if (!seen.length) return;
    let x0 = seen[0][0], x1 = x0, y0 = Infinity, y1 = -Infinity;
    for (const point of seen) {
      x0 = Math.min(x0, point[0]); x1 = Math.max(x1, point[0]);
      for (const value of point.slice(1)) if (number(value)) { y0 = Math.min(y0, value); y1 = Math.max(y1, value); }
    }
    if (y0 > y1) { y0 = 0; y1 = 1; }
    if (y0 === y1) { const pad = Math.abs(y0) * 0.1; y0 -= pad; y1 += pad || 1; }
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    const X = (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left);
    const Y = (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top);
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": chart.title });
    for (const y of ticks(y0, y1)) {
      svg.append(make("line", { class: "grid", x1: box.left, x2: box.right, y1: Y(y), y2: Y(y) }));
      svg.append(make("text", { x: box.left - 4, y: Y(y) + 3, "text-anchor": "end" }, short(y)));
    }
    for (const x of ticks(x0, x1)) if (Number.isInteger(x)) svg.append(make("text", { x: X(x), y: H - 4, "text-anchor": "middle" }, String(x)));
    chart.lines.forEach((line, at) => {
      const points = line.points.filter((p) => p[0] >= from && p[0] <= to);
      const banded = points.filter((p) => p.length > 2 && number(p[2]) && number(p[3]));
      if (banded.length > 1) {
        const over = banded.map((p) => `${X(p[0]).toFixed(1)},${Y(p[3]).toFixed(1)}`);
        const under = banded.map((p) => `${X(p[0]).toFixed(1)},${Y(p[2]).toFixed(1)}`).reverse();
        svg.append(make("path", { class: "band", d: "M" + over.concat(under).join("L") + "Z" }));
      }
      let path = "", pen = false;
      for (const [x, y] of points) {
        if (!number(y)) { pen = false; svg.append(make("rect", { class: "broken", x: X(x) - 1.5, y: box.bottom - 6, width: 3, height: 6 })); continue; }
        path += `${pen ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`;
        pen = true;
      }
      svg.append(make("path", { class: `line s${at}`, d: path }));
      if (points.length <= 60) for (const [x, y] of points) if (number(y)) svg.append(make("circle", { class: `dot${at}`, cx: X(x), cy: Y(y), r: 2 }));
    });
    if (chart.mark !== null && chart.mark >= x0 && chart.mark <= x1) svg.append(make("line", { class: "mark", x1: X(chart.mark), x2: X(chart.mark), y1: box.top, y2: box.bottom }));
    const cursor = make("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
    const zoom = make("rect", { class: "zoom", y: box.top, height: box.bottom - box.top, width: 0, visibility: "hidden" });
    svg.append(zoom, cursor);
    const readout = tag("div", "read", "");
    const steps = [...new Set(seen.map((p) => p[0]))].sort((a, b) => a - b);
    const near = (event) => {
      const edge = svg.getBoundingClientRect();
      const x = x0 + (((event.clientX - edge.left) * W / edge.width - box.left) / (box.right - box.left)) * (x1 - x0);
      return steps.reduce((best, step) => (Math.abs(step - x) < Math.abs(best - x) ? step : best));
    };
    let start = null;
    svg.addEventListener("pointermove", (event) => {
      const step = near(event);
      cursor.setAttribute("x1", X(step)); cursor.setAttribute("x2", X(step)); cursor.setAttribute("visibility", "visible");
      const said = chart.lines.map((line) => {
        const point = line.points.find((p) => p[0] === step);
        if (!point) return null;
        const band = point.length > 2 ? ` (${short(point[2])} … ${short(point[3])})` : "";
        return (chart.lines.length > 1 ? line.name + " " : "") + short(point[1]) + band;
      });
      readout.textContent = `step ${step}: ${said.filter((text) => text !== null).join(" · ")}`;
      if (start !== null) {
        const ends = [X(start), X(step)].sort((a, b) => a - b);
        zoom.setAttribute("x", ends[0]); zoom.setAttribute("width", ends[1] - ends[0]); zoom.setAttribute("visibility", "visible");
      }
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = ""; });
    svg.addEventListener("pointerdown", (event) => { start = near(event); });
    svg.addEventListener("pointerup", (event) => {
      const end = near(event), begin = start;
      start = null;
      zoom.setAttribute("visibility", "hidden");
      if (begin !== null && begin !== end) { figure.zoom = [Math.min(begin, end), Math.max(begin, end)]; draw(figure); }
      else if (chart.href) go(chart.href.replace("{}", end));
    });
    svg.addEventListener("dblclick", () => { figure.zoom = null; draw(figure); });
    figure.append(svg);
    if (chart.lines.length > 1) {
      const keys = tag("div", "keys");
      chart.lines.forEach((line, at) => { const key = tag("span"); key.append(tag("i", `k${at}`), line.name); keys.append(key); });
      figure.append(keys);
    }
    const hint = figure.zoom ? "double click: all steps" : "";
    readout.textContent = hint;
    figure.append(readout);
  }
  function figureOf(chart) {
    const figure = tag("figure", "chart"), data = tag("script");
    data.type = "application/json";
    data.textContent = JSON.stringify(chart);
    figure.append(tag("figcaption", "", chart.title), data);
    return figure;
  }

  // --- what the recordings add up to comes little by little
  async function fill(box) {
    for (;;) {
      let answer;
      try { answer = await (await fetch(box.dataset.series)).json(); } catch { return; }
      if (!box.isConnected) return;
      const known = new Map([...box.querySelectorAll("figure")].map((figure) => [figure.querySelector("figcaption").textContent, figure]));
      for (const chart of answer.charts) {
        const old = known.get(chart.title), fresh = figureOf(chart);
        if (old) { fresh.zoom = old.zoom; old.replaceWith(fresh); } else box.append(fresh);
        draw(fresh);
      }
      const wait = box.querySelector(".wait");
      if (answer.done) { box.dataset.done = "1"; if (wait) { if (answer.charts.length) wait.remove(); else wait.textContent = "no rewards, lengths or log-probs were recognised"; } return; }
      if (wait) wait.textContent = `reading the recordings … ${answer.known} of ${answer.steps} steps`;
    }
  }

  // --- tokens
  function bins(scale) {
    const values = scale.values.filter((v) => typeof v === "number");
    if (scale.kind === "low") {
      const end = Math.min(...values, -1e-12);
      return { low: end, high: 0, of: (v) => (v >= 0 ? "" : "h" + Math.max(1, Math.min(8, Math.ceil((8 * v) / end)))) };
    }
    const end = Math.max(...values.map(Math.abs), 1e-12);
    return { low: -end, high: end, of: (v) => (v === 0 ? "" : (v < 0 ? "h" : "l") + Math.max(1, Math.min(8, Math.ceil((8 * Math.abs(v)) / end)))) };
  }
  function colour() {
    const select = main.querySelector("#color");
    if (!select) return;
    const boxes = [...main.querySelectorAll('.tokens[data-side="response"]')];
    const data = [...main.querySelectorAll("#scales, script.scales")].map(read);
    const legend = main.querySelector("#scale");
    legend.replaceChildren();
    const joint = data.map((scales) => scales.find((scale) => scale.name === select.value)).filter(Boolean);
    const range = joint.length ? bins({ kind: joint[0].kind, values: joint.flatMap((scale) => scale.values) }) : null;
    boxes.forEach((box, side) => {
      const scale = (data[side] || []).find((one) => one.name === select.value);
      box.querySelectorAll(".tok").forEach((token, at) => {
        const value = scale && at < scale.values.length ? scale.values[at] : undefined;
        token.classList.remove(...[...token.classList].filter((name) => /^[hl]\d$|^nan$/.test(name)));
        if (value === undefined) return;
        const name = typeof value === "number" ? range.of(value) : "nan";
        if (name) token.classList.add(name);
      });
      box.scales = data[side] || [];
    });
    if (range) {
      legend.append(tag("b", "", short(range.low, 3)));
      const both = joint[0].kind === "both";
      for (let at = 8; at >= 1; at--) legend.append(tag("i", "h" + at));
      if (both) for (let at = 1; at <= 8; at++) legend.append(tag("i", "l" + at));
      legend.append(tag("b", "", short(range.high, 3)));
    }
  }
  function hover(event) {
    const token = event.target.closest ? event.target.closest(".tok") : null;
    if (!token) { tip.hidden = true; return; }
    const at = Number(token.dataset.i), lines = [`token ${at}   id ${token.dataset.id}`];
    for (const scale of token.parentElement.scales || []) if (at < scale.values.length) lines.push(`${scale.name}   ${short(scale.values[at])}`);
    if (token.classList.contains("untrained")) lines.push("not trained on");
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const edge = token.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(edge.left, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (edge.bottom + tip.offsetHeight + 8 > innerHeight ? edge.top - tip.offsetHeight - 6 : edge.bottom + 6) + "px";
  }

  // --- tables
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
    const { path, query } = place(), words = query.get("q") || "";
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

  // --- keys
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
  function theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("rolltape-theme", document.documentElement.dataset.theme); } catch { /* a file may have no storage */ }
  }
  function key(event) {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
    const link = [...main.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
    const select = main.querySelector("#color"), field = main.querySelector('input[type="search"]');
    if (link) go(link.getAttribute("href"));
    else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
    else if (event.key === "Enter" && !event.target.closest("a, button")) {
      const at = main.querySelector(".at");
      if (at) go((at.matches("a") ? at : at.querySelector("a.open, a")).getAttribute("href"));
    } else if (event.key === "c" && select) { select.selectedIndex = (select.selectedIndex + 1) % select.length; select.dispatchEvent(new Event("change")); }
    else if (event.key === "/" && field) { field.focus(); event.preventDefault(); }
    else if (event.key === "t") theme();
    else if (event.key === "?") document.getElementById("keys").showModal();
  }
  async function copy(button) {
    const what = button.dataset.copy, box = main.querySelector("#" + what);
    const text = what === "link" ? location.href
      : what === "ids" ? [...main.querySelectorAll('.tokens[data-side="response"] .tok')].map((token) => token.dataset.id).join(", ")
      : [...box.querySelectorAll("pre")].map((pre) => pre.textContent).join("\n\n");
    const said = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed to copy"; }
    setTimeout(() => { button.textContent = said; }, 1200);
  }

  // --- a page has come
  function ready() {
    const { query } = place();
    tip.hidden = true;
    main.querySelectorAll("figure.chart").forEach(draw);
    main.querySelectorAll("[data-series]").forEach(fill);
    const table = main.querySelector("table.sortable");
    if (table && query.get("sort")) sort(table, query.get("sort"), query.get("dir") === "down");
    searchHere();
    const select = main.querySelector("#color");
    if (select) {
      const wanted = query.get("color");
      if (wanted && [...select.options].some((option) => option.value === wanted)) select.value = wanted;
      select.addEventListener("change", () => { setQuery("color", select.selectedIndex ? select.value : ""); colour(); });
      colour();
    }
    const row = query.get("row");
    if (row !== null && items()[Number(row)]) items()[Number(row)].classList.add("at");
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
  async function follow() {
    const live = document.getElementById("live");
    try {
      const answer = await (await fetch("/state")).json();
      live.textContent = "following";
      if (answer.version !== document.body.dataset.follow) {
        const text = await (await fetch(location.href)).text();
        // A parsed document runs nothing; only what is in its main part is taken over.
        const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
        if (fresh) { main.replaceChildren(...fresh.childNodes); document.body.dataset.follow = answer.version; ready(); }
      }
    } catch { live.textContent = "the server is gone"; }
    setTimeout(follow, 1000);
  }

  try { const kept = localStorage.getItem("rolltape-theme"); if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept; } catch { /* as above */ }
  document.addEventListener("keydown", key);
  document.addEventListener("pointerover", hover);
  document.getElementById("theme").addEventListener("click", theme);
  document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
  main.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]"), head = event.target.closest("th[data-sort]"), strip = event.target.closest(".strip svg");
    if (button) copy(button);
    if (head) {
      const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.classList.contains("num") && head.dataset.sort !== "order");
      sort(head.closest("table"), head.dataset.sort, down);
      setQuery("sort", head.dataset.sort);
      setQuery("dir", down ? "down" : "");
    }
    if (strip) {
      const box = strip.closest(".strips"), edge = strip.getBoundingClientRect(), first = Number(box.dataset.first), last = Number(box.dataset.last);
      if (box.dataset.href) go(box.dataset.href.replace("{}", Math.floor(first + ((event.clientX - edge.left) / edge.width) * (last - first + 1))));
    }
  });
  if (inFile) {
    main.addEventListener("submit", (event) => {
      event.preventDefault();
      const form = event.target, query = new URLSearchParams(new FormData(form));
      go("#" + place().path + "?" + query);
    });
    addEventListener("hashchange", route);
    route();
  } else ready();
  let timer = null;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => main.querySelectorAll("figure.chart").forEach(draw), 150); });
  if (document.body.dataset.follow !== undefined) setTimeout(follow, 1000);
})();
