// One plot of curves over steps, drawn by uPlot: pointing says values, dragging zooms, a click opens the step.
"use strict";
rolltape.plot = (({ tag, go, short }) => {
  const HEIGHT = 160;
  const FONT = "11px system-ui, 'Segoe UI', Roboto, sans-serif";
  const STEPS = [1, 2, 5].flatMap((n) => [...Array(16).keys()].map((power) => n * 10 ** power)).sort((a, b) => a - b);
  const palette = {};

  function readPalette() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["a", "b", "bad", "dim", "line", "bg"]) palette[name] = style.getPropertyValue("--" + name).trim();
    palette.many = [...Array(20).keys()].map((at) => style.getPropertyValue("--c" + at).trim());
  }
  const lineColour = (at) => (at === 0 ? palette.a : at === 1 ? palette.b : palette.many[at % 20]);
  const faint = (colour) => (colour.startsWith("#") ? colour + "66" : colour.replace(")", " / 40%)"));
  const drawing = { smooth: 0, log: false, over: "step", axes: {} }; // as the tools of the page say

  // A value is a number, null where none was logged, or the name of one that is not finite.
  const said = (value) => (value === null ? "–" : String(value));
  const drawn = (value) => (typeof value === "number" ? value : value === null ? undefined : null); // null breaks the line
  // A running mean that forgets, as TensorBoard's: gaps and what is not finite stay where they are.
  function smoothed(values) {
    const keep = drawing.smooth;
    let last = 0, weight = 0;
    return values.map((value) => {
      if (typeof value !== "number" || !keep) return value;
      last = keep * last + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
      return last / weight;
    });
  }
  function columns(chart) {
    const found = chart.lines.flatMap((line) => (line.low ? [line.values, line.low, line.high] : [line.values]).map((values) => smoothed(values.map(drawn))));
    if (chart.stack) for (let at = 1; at < found.length; at++) found[at] = found[at].map((value, i) => (value || 0) + (found[at - 1][i] || 0));
    return [chart.steps, ...found];
  }

  // The same chart over time or tokens. Every run has its own; `origin` has the steps that the places are of.
  function overAxis(chart) {
    const kind = drawing.over, only = Object.keys(drawing.axes)[0], points = new Map();
    if (kind !== "step") chart.lines.forEach((line, which) => {
      const known = (drawing.axes[line.run ?? only] || {})[kind] || {};
      chart.steps.forEach((step, at) => {
        const place = known[step];
        if (place === undefined || line.values[at] === null) return;
        if (!points.has(place)) points.set(place, { step, from: [] });
        points.get(place).from[which] = at;
      });
    });
    if (!points.size) return { ...chart, origin: chart.steps };
    const places = [...points.keys()].sort((a, b) => a - b), found = places.map((place) => points.get(place));
    const moved = (values, which) => values && found.map((one) => (one.from[which] === undefined ? null : values[one.from[which]]));
    const lines = chart.lines.map((line, which) => ({ ...line, values: moved(line.values, which), low: moved(line.low, which), high: moved(line.high, which) }));
    return { ...chart, steps: places, origin: found.map((one) => one.step), lines, mark: null, kind };
  }
  function placeText(place, kind) {
    if (kind === "tokens") return place >= 1e6 ? short(place / 1e6, 4) + " M" : place >= 1e4 ? short(place / 1e3, 4) + " k" : String(place);
    if (kind === "time") return place >= 7200 ? short(place / 3600, 3) + " h" : place >= 180 ? short(place / 60, 3) + " min" : short(place, 3) + " s";
    return String(place);
  }

  function series(chart) {
    const found = [{}], bands = [];
    chart.lines.forEach((line, at) => {
      const part = chart.stack ? { fill: at ? undefined : () => faint(lineColour(at)), points: { show: false } } : { points: { size: 4 } };
      if (chart.stack && at) bands.push({ series: [at + 1, at], fill: () => faint(lineColour(at)) });
      found.push({ stroke: () => lineColour(at), width: 1.5, dash: at === 1 && chart.lines.length === 2 && !chart.stack ? [5, 3] : undefined, ...part });
      if (!line.low) return;
      bands.push({ series: [found.length + 1, found.length], fill: () => lineColour(at) + "26" });
      for (let edge = 0; edge < 2; edge++) found.push({ stroke: () => lineColour(at) + "55", width: 0.5, points: { show: false } });
    });
    return { series: found, bands };
  }
  function axes(kind) {
    const common = { stroke: () => palette.dim, font: FONT, ticks: { show: false }, grid: { stroke: () => palette.line, width: 1 } };
    const size = (plot, labels) => 12 + 6.2 * Math.max(3, ...(labels || []).map((label) => String(label).length));
    return [
      { ...common, grid: { show: false }, ...(kind === "time" ? {} : { incrs: STEPS }), size: 24, gap: 4, values: (plot, ticks) => ticks.map((tick) => placeText(tick, kind)) },
      { ...common, size, gap: 4, space: 28, values: (plot, ticks) => ticks.map((tick) => String(Number(tick.toPrecision(10)))) },
    ];
  }
  function stepRange(plot, low, high) {
    const steps = plot.data[0], alone = steps.length === 1;
    const pad = alone ? 0.5 : (high - low) * 0.02;
    return alone ? [steps[0] - pad, steps[0] + pad] : [low - pad, high + pad];
  }
  function valueRange(plot, low, high) {
    if (low === null || low === undefined) return [0, 1];
    // Values that differ in the last digit alone: uPlot would look for steps finer than there are numbers.
    const finest = Math.max(Math.abs(low), Math.abs(high)) * 1e-13;
    const pad = low === high ? Math.abs(low) * 0.1 || 1 : Math.max((high - low) * 0.06, finest);
    return [low - pad, high + pad];
  }

  function readout(chart, at) {
    const lines = chart.lines.filter((line) => line.values[at] !== null);
    const few = (value) => (value === null ? "–" : short(value));
    // As many digits as it takes to tell the lines apart.
    const alike = new Set(lines.map((line) => few(line.values[at]))).size < new Set(lines.map((line) => line.values[at])).size;
    const texts = lines.map((line) => {
      const band = line.low && line.low[at] !== null ? ` (${few(line.low[at])} … ${few(line.high[at])})` : "";
      return (chart.lines.length > 1 ? line.name + " " : "") + (alike ? said : few)(line.values[at]) + band;
    });
    const place = chart.kind ? ` (${placeText(chart.steps[at], chart.kind)})` : "";
    return `step ${chart.origin[at]}${place}: ${texts.join(" · ")}`;
  }
  function markBroken(plot, chart) {
    const { left, top, height } = plot.bbox, ratio = devicePixelRatio;
    plot.ctx.fillStyle = palette.bad;
    for (const line of chart.lines) line.values.forEach((value, at) => {
      const x = plot.valToPos(chart.steps[at], "x", true);
      if (typeof value === "string" && x >= left && x <= left + plot.bbox.width) plot.ctx.fillRect(x - 1.5 * ratio, top + height - 6 * ratio, 3 * ratio, 6 * ratio);
    });
  }

  class Plot {
    constructor(figure, chart) {
      this.box = tag("div", "plot");
      this.read = tag("div", "read");
      this.reset = tag("button", "reset", "all steps");
      this.mark = tag("i", "mark");
      this.title = figure.querySelector("figcaption").textContent;
      this.box.tabIndex = 0;
      this.box.setAttribute("role", "group");
      this.box.setAttribute("aria-label", `${this.title}: left and right read values, Enter opens the step, + and - zoom, Escape shows all steps`);
      this.read.setAttribute("aria-live", "polite");
      this.reset.type = "button";
      this.reset.hidden = true;
      this.reset.addEventListener("click", () => this.zoomAll(null));
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.figure = figure;
      this.chart = chart;
      figure.append(this.box);
      if (this.chart.lines.length === 2 || this.chart.lines[0].low || this.chart.stack) figure.append(this.names()); // of more, the page has one list
      this.box.append(this.read, this.reset);
      this.build();
    }
    build() {
      this.view = overAxis(this.chart);
      this.plot = new uPlot(this.options(), columns(this.view), this.box);
      this.plot.over.append(this.mark);
      this.plot.over.addEventListener("click", () => { if (!this.dragged) this.open(); });
      this.place();
    }
    rebuild() {
      this.plot.destroy();
      this.build();
      if (this.zoomed) this.zoom(this.zoomed);
    }
    // Zooming goes for all plots of the page: they are about the same steps.
    zoomAll(range) {
      for (const one of everyone()) one.zoom(range);
    }
    valueScale() {
      if (this.chart.share) return { range: () => [-0.02, 1.02] };
      if (this.chart.stack) return { range: (plot, low, high) => [0, high * 1.05 || 1] };
      if (!drawing.log) return { range: valueRange };
      const positive = this.chart.lines.every((line) => line.values.every((value) => typeof value !== "number" || value > 0));
      return positive ? { distr: 3 } : { distr: 4, asinh: 1e-3 };
    }
    options() {
      const hooks = {
        setCursor: [(plot) => this.pointed(plot.cursor.idx)],
        setSelect: [(plot) => this.select(plot)],
        draw: [(plot) => { markBroken(plot, this.view); if (this.plot) this.place(); }],
      };
      const cursor = {
        y: false,
        move: (plot, left, top) => [left < 0 ? left : plot.valToPos(plot.data[0][plot.posToIdx(left)], "x"), top], // from step to step
        drag: { x: true, y: false, setScale: false, dist: 4, click: () => {} },
        sync: { key: "steps", scales: ["x", null], filters: { pub: (type) => type === "mousemove" } },
        bind: { dblclick: () => () => this.zoomAll(null), mousedown: (plot, over, handle) => (event) => { this.dragged = false; if (event.button === 0) handle(event); } },
      };
      return { width: this.width(), height: HEIGHT, scales: { x: { time: false, range: stepRange }, y: this.valueScale() }, axes: axes(this.view.kind), legend: { show: false }, cursor, hooks, ...series(this.view) };
    }
    width() {
      return Math.max(this.box.clientWidth, 180);
    }
    names() {
      const keys = tag("div", "keys");
      this.chart.lines.forEach((line, at) => {
        const key = tag("span"), sign = tag("i", "k" + at);
        if (this.chart.stack) Object.assign(sign.style, { borderTop: `8px solid ${faint(lineColour(at))}` });
        key.append(sign, line.name);
        keys.append(key);
      });
      if (this.chart.lines[0].low) { const key = tag("span"); key.append(tag("i", "band"), "lowest to highest"); keys.append(key); }
      return keys;
    }
    place() {
      const step = this.view.mark, { min, max } = this.plot.scales.x;
      this.mark.hidden = step === null || step < min || step > max;
      if (!this.mark.hidden) this.mark.style.left = this.plot.valToPos(step, "x") + "px";
    }
    pointed(at) {
      this.at = at;
      const none = at === null || at === undefined;
      this.read.textContent = none ? "" : readout(this.view, at);
      for (const one of everyone()) if (one.follow) one.follow(none ? null : this.view.origin[at]);
    }
    select(plot) {
      const { left, width } = plot.select;
      if (!width) return;
      this.dragged = true;
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      const from = plot.posToIdx(left), to = plot.posToIdx(left + width);
      if (from < to) this.zoomAll([this.view.steps[from], this.view.steps[to]]);
    }
    zoom(range) {
      const { steps } = this.view;
      this.zoomed = range;
      this.reset.hidden = range === null;
      this.plot.setScale("x", range ? { min: range[0], max: range[1] } : { min: steps[0], max: steps[steps.length - 1] });
    }
    open() {
      if (this.at !== null && this.at !== undefined && this.chart.href) go(this.chart.href.replace("{}", this.view.origin[this.at]));
    }
    show(at) {
      this.plot.setCursor({ left: this.plot.valToPos(this.view.steps[at], "x"), top: 10 });
    }
    key(event) {
      const { steps } = this.view, [first, last] = this.zoomed || [steps[0], steps[steps.length - 1]];
      const low = steps.indexOf(first), high = steps.indexOf(last), now = this.at ?? null;
      const moves = { ArrowLeft: now === null ? high : now - 1, ArrowRight: now === null ? low : now + 1, Home: low, End: high };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) this.show(Math.max(low, Math.min(high, moves[event.key])));
      else if (event.key === "Enter") this.open();
      else if (event.key === "Escape" || event.key === "0") this.zoomAll(null);
      else if (event.key === "+" || event.key === "-") {
        const half = Math.max(1, Math.round((high - low) * (event.key === "+" ? 0.25 : 1))), middle = now ?? Math.round((low + high) / 2);
        const range = [Math.max(0, middle - half), Math.min(steps.length - 1, middle + half)];
        this.zoomAll(range[0] === 0 && range[1] === steps.length - 1 ? null : range.map((at) => steps[at]));
      } else return;
      event.preventDefault();
      event.stopPropagation();
    }
    resize() {
      this.plot.setSize({ width: this.width(), height: HEIGHT });
    }
    update(chart) {
      this.chart = chart;
      this.view = overAxis(chart);
      this.plot.setData(columns(this.view), this.zoomed === undefined || this.zoomed === null);
      if (this.zoomed) this.plot.setScale("x", { min: this.zoomed[0], max: this.zoomed[1] });
    }
  }

  let everyone = () => [];
  const knows = (all) => { everyone = all; };

  return { Plot, readPalette, said, drawing, knows, lineColour, palette, zoomAll: (range) => { for (const one of everyone()) one.zoom(range); } };
})(rolltape.page);
