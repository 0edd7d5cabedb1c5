// How values are distributed over the steps: the darker a cell, the more samples of its step have such a value.
"use strict";
rolltape.heat = (({ tag, read, go, short }, { palette, drawing, zoomAll }) => {
  const HEIGHT = 160, BOTTOM = 20;

  class Heat {
    constructor(figure) {
      this.figure = figure;
      this.box = tag("div", "plot heat");
      this.read = tag("div", "read");
      this.reset = tag("button", "reset", "all steps");
      this.canvas = tag("canvas");
      this.box.tabIndex = 0;
      this.box.setAttribute("role", "group");
      this.box.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}: left and right read values, Enter opens the step, Escape shows all steps`);
      this.read.setAttribute("aria-live", "polite");
      this.reset.type = "button";
      this.reset.hidden = true;
      this.reset.addEventListener("click", () => zoomAll(null));
      this.canvas.addEventListener("mousemove", (event) => this.pointed(this.column(event), this.row(event)));
      this.canvas.addEventListener("mouseleave", () => this.pointed(null));
      this.canvas.addEventListener("click", (event) => this.open(this.column(event)));
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.chart = read(figure.querySelector("script"));
      this.box.append(this.canvas, this.read, this.reset);
      figure.append(this.box);
      // As uPlot's: what saves a picture or paints it anew asks for these.
      this.plot = { ctx: this.canvas.getContext("2d"), destroy: () => {}, redraw: () => this.draw() };
      this.draw();
    }
    get shown() {
      const { columns } = this.chart.heat, places = columns.map((_, at) => at);
      return this.zoomed ? places.filter((at) => columns[at][1] >= this.zoomed[0] && columns[at][0] <= this.zoomed[1]) : places;
    }
    get ends() { // the lowest and the highest value that there is
      const { lines } = this.chart;
      return [Math.min(...lines[0].values), Math.max(...lines[lines.length - 1].values)].map((value) => short(value, 3));
    }
    get size() {
      const { edges } = this.chart.heat, labels = this.ends;
      const left = 8 + 6.2 * Math.max(3, ...labels.map((label) => label.length)), width = Math.max(this.box.clientWidth, 180);
      return { left, width, cell: (width - left) / Math.max(this.shown.length, 1), row: (HEIGHT - BOTTOM) / (edges.length - 1) };
    }
    draw() {
      const { counts, columns } = this.chart.heat, { left, width, cell, row } = this.size, { shown } = this, { ctx } = this.plot, ratio = devicePixelRatio || 1;
      this.canvas.width = width * ratio;
      this.canvas.height = HEIGHT * ratio;
      Object.assign(this.canvas.style, { width: width + "px", height: HEIGHT + "px" });
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.fillStyle = palette.a;
      shown.forEach((at, x) => {
        const all = counts[at].reduce((sum, count) => sum + count, 0) || 1;
        counts[at].forEach((count, y) => {
          if (!count) return;
          ctx.globalAlpha = 0.08 + 0.92 * Math.sqrt(count / all);
          ctx.fillRect(left + x * cell, HEIGHT - BOTTOM - (y + 1) * row, Math.max(cell - (cell > 4 ? 1 : 0), 0.5), Math.max(row - 0.5, 0.5));
        });
      });
      ctx.globalAlpha = 1;
      ctx.fillStyle = palette.dim;
      ctx.font = "11px system-ui, 'Segoe UI', Roboto, sans-serif";
      ctx.textAlign = "right";
      const [lowest, highest] = this.ends;
      ctx.fillText(highest, left - 4, 10);
      ctx.fillText(lowest, left - 4, HEIGHT - BOTTOM);
      if (!shown.length) return;
      const first = columns[shown[0]][0], last = columns[shown[shown.length - 1]][1];
      if (first !== last) ctx.fillText(String(last), width - 2, HEIGHT - 5);
      ctx.textAlign = "left";
      ctx.fillText(String(first), left, HEIGHT - 5);
    }
    column(event) {
      const { left, cell } = this.size, at = Math.floor((event.offsetX - left) / cell);
      return at >= 0 && at < this.shown.length ? at : null;
    }
    row(event) {
      const at = Math.floor((HEIGHT - BOTTOM - event.offsetY) / this.size.row);
      return at >= 0 && at < this.chart.heat.edges.length - 1 ? at : null;
    }
    pointed(x, y = null) {
      this.at = x;
      if (x === null) { this.read.textContent = ""; return; }
      const { columns, counts, edges } = this.chart.heat, at = this.shown[x], [first, last] = columns[at];
      const steps = first === last ? `step ${first}` : `steps ${first}–${last}`, all = counts[at].reduce((sum, count) => sum + count, 0);
      const place = this.chart.steps.indexOf(first), [, , median] = this.chart.lines;
      const cell = y === null ? `median ${short(median.values[place])}` : `${short(edges[y], 4)} … ${short(edges[y + 1], 4)}: ${Math.round((100 * counts[at][y]) / all)} %`;
      this.read.textContent = `${steps}: ${cell}`;
    }
    follow(step) {
      const at = step === null ? -1 : this.shown.findIndex((one) => this.chart.heat.columns[one][0] <= step && step <= this.chart.heat.columns[one][1]);
      this.pointed(at < 0 ? null : at);
    }
    open(x) {
      if (x !== null && x !== undefined && this.chart.href) go(this.chart.href.replace("{}", this.chart.heat.columns[this.shown[x]][0]));
    }
    key(event) {
      const last = this.shown.length - 1, now = this.at ?? null;
      const moves = { ArrowLeft: now === null ? last : now - 1, ArrowRight: now === null ? 0 : now + 1, Home: 0, End: last };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) this.pointed(Math.max(0, Math.min(last, moves[event.key])));
      else if (event.key === "Enter") this.open(this.at);
      else if (event.key === "Escape" || event.key === "0") zoomAll(null);
      else return;
      event.preventDefault();
      event.stopPropagation();
    }
    zoom(range) {
      if (range && drawing.over !== "step") return; // the others are zoomed over something else
      this.zoomed = range;
      this.reset.hidden = range === null;
      this.draw();
    }
    rebuild() { this.zoom(null); }
    resize() { this.draw(); }
    update(chart) {
      this.chart = chart;
      this.draw();
    }
  }

  return { Heat };
})(rolltape.page, rolltape.plot);
