// The plots of a page. Each is also a table, which needs no eyes, no mouse and no uPlot.
"use strict";
rolltape.charts = (({ main, tag, read, place, setQuery }, { Plot, readPalette, said, drawing, knows }, { Heat }, { buttons }) => {
  const live = new Map(); // figure -> its plot
  knows(() => [...live.values()]);

  // The table is made when it is opened: most never are.
  function fillTable(figure) {
    const details = figure.querySelector("details"), chart = read(figure.querySelector("script"));
    const table = tag("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    const heads = chart.lines.flatMap((line) => (line.low ? [line.name, "lowest", "highest"] : [line.name]));
    const values = chart.lines.flatMap((line) => (line.low ? [line.values, line.low, line.high] : [line.values]));
    for (const name of ["step", ...heads]) { const cell = tag("th", "num", name); cell.scope = "col"; head.append(cell); }
    chart.steps.forEach((step, at) => {
      const row = body.insertRow(), link = tag(chart.href ? "a" : "span", "", String(step));
      if (chart.href) link.href = chart.href.replace("{}", step);
      row.className = step === chart.mark ? "num warn" : "num";
      row.insertCell().append(link);
      for (const column of values) row.insertCell().textContent = said(column[at]);
    });
    details.querySelector("div").replaceChildren(buttons(chart, live.get(figure)), table);
  }
  function addTable(figure) {
    const details = tag("details", "values");
    details.append(tag("summary", "", "values"), tag("div", "scroll"));
    details.addEventListener("toggle", () => { if (details.open) fillTable(figure); });
    figure.append(details);
  }

  function draw(figure) {
    const chart = read(figure.querySelector("script")), other = [...live.values()].find((one) => one.zoomed);
    if (chart.heat) live.set(figure, new Heat(figure));
    else if (typeof uPlot !== "undefined") live.set(figure, new Plot(figure, chart));
    if (other && live.has(figure)) live.get(figure).zoom(other.zoomed);
    addTable(figure);
    figure.dataset.drawn = "1";
  }
  // The first are there at once; the page can be used while the others are drawn.
  async function drawAll(figures) {
    for (const [at, figure] of figures.entries()) {
      if (at > 1) await new Promise((done) => setTimeout(done));
      if (figure.isConnected) draw(figure);
    }
  }
  function figureOf(chart) {
    const figure = tag("figure", "chart"), data = tag("script");
    data.type = "application/json";
    figure.append(tag("figcaption", "", chart.title), data);
    return figure;
  }

  // What the recordings add up to comes little by little.
  async function fill(box) {
    const figures = new Map();
    for (;;) {
      let answer;
      try { answer = await (await fetch(box.dataset.series)).json(); } catch { return; }
      if (!box.isConnected) return;
      for (const chart of answer.charts) {
        const old = figures.get(chart.title), figure = old || figureOf(chart);
        figure.querySelector("script").textContent = JSON.stringify(chart);
        if (!old) { figures.set(chart.title, figure); box.append(figure); draw(figure); continue; }
        if (live.has(figure)) live.get(figure).update(chart);
        if (figure.querySelector("details").open) fillTable(figure);
      }
      const wait = box.querySelector(".wait");
      if (answer.done) {
        box.dataset.done = "1";
        if (answer.charts.length) wait.remove();
        else wait.textContent = "no rewards, lengths or log-probs were recognised";
        return;
      }
      wait.textContent = `reading the recordings … ${answer.known} of ${answer.steps} steps`;
    }
  }

  // Smoothing and the axis go for all plots, and are part of the address.
  function tools() {
    const smooth = main.querySelector("#smooth"), log = main.querySelector("#log"), { query } = place();
    if (!smooth) return;
    smooth.value = query.get("smooth") || "0";
    log.checked = query.get("log") === "1";
    const apply = () => {
      Object.assign(drawing, { smooth: Number(smooth.value), log: log.checked });
      for (const one of live.values()) one.rebuild();
    };
    Object.assign(drawing, { smooth: Number(smooth.value), log: log.checked });
    smooth.addEventListener("input", apply);
    smooth.addEventListener("change", () => setQuery("smooth", Number(smooth.value) ? smooth.value : ""));
    log.addEventListener("change", () => { setQuery("log", log.checked ? "1" : ""); apply(); });
    const over = main.querySelector("#over");
    Object.assign(drawing, { over: "step", axes: {} });
    if (!over) return;
    over.addEventListener("change", () => { setQuery("over", over.value === "step" ? "" : over.value); overAxis(over.value); });
    if (["time", "tokens"].includes(query.get("over"))) { over.value = query.get("over"); overAxis(over.value); }
  }
  // What the steps are drawn over: each run tells its own times and tokens, once somebody asks for them.
  async function overAxis(choice) {
    const places = main.querySelector("#axes"), wait = main.querySelector("#over-wait");
    if (choice !== "step") for (const [run, found] of Object.entries(read(places))) {
      for (let answer = found; typeof found === "string" && !(drawing.axes[run] || {}).done; drawing.axes[run] = answer) {
        wait.textContent = "reading the recordings …";
        try { answer = await (await fetch(found)).json(); } catch { wait.textContent = "the server does not answer"; return; }
        if (!wait.isConnected) return;
      }
      if (typeof found !== "string") drawing.axes[run] = found;
    }
    const known = choice === "step" || Object.values(drawing.axes).some((one) => Object.keys(one[choice]).length);
    wait.textContent = known ? "" : "not recorded";
    drawing.over = known ? choice : "step";
    for (const one of live.values()) { one.zoomed = null; one.rebuild(); }
    main.querySelector("#over").dataset.drawn = drawing.over;
  }
  function sayMissing() {
    const first = main.querySelector(".charts"), text = document.body.dataset.noplots;
    if (first && text) first.before(tag("p", "warn noplots", text));
  }
  function ready() {
    for (const [figure, plot] of live) if (!figure.isConnected) { plot.plot.destroy(); live.delete(figure); }
    readPalette();
    sayMissing();
    tools();
    drawAll([...main.querySelectorAll("figure.chart")]);
    main.querySelectorAll("[data-series]").forEach(fill);
  }
  function repaint() {
    readPalette();
    for (const { plot } of live.values()) plot.redraw(true, true);
  }
  let timer = null;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { for (const one of live.values()) one.resize(); }, 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  return { ready, repaint };
})(rolltape.page, rolltape.plot, rolltape.heat, rolltape.save);
