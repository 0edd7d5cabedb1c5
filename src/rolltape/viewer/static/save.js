// A plot as a file: its numbers as CSV, the picture as PNG, and as SVG for a paper.
"use strict";
rolltape.save = (({ tag }, { lineColour, palette }) => {
  const name = (chart, kind) => chart.title.replace(/[^A-Za-z0-9._-]+/g, "_") + "." + kind;
  function give(text, kind, type) {
    const link = tag("a"), address = URL.createObjectURL(new Blob([text], { type }));
    link.href = address;
    link.download = kind;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }
  // A cell that begins like a formula is one to a spreadsheet.
  const cell = (text) => '"' + String(text).replace(/^[=+@-]/, "'$&").replaceAll('"', '""') + '"';
  function csv(chart) {
    const heads = chart.lines.flatMap((line) => (line.low ? [line.name, line.name + " lowest", line.name + " highest"] : [line.name]));
    const columns = chart.lines.flatMap((line) => (line.low ? [line.values, line.low, line.high] : [line.values]));
    const rows = chart.steps.map((step, at) => [step, ...columns.map((values) => values[at] ?? "")].join(","));
    return [["step", ...heads].map(cell).join(","), ...rows].join("\n") + "\n";
  }
  function svg(chart) {
    const width = 640, height = 320, left = 60, known = chart.lines.flatMap((line) => line.values).filter((value) => typeof value === "number");
    const [bottom, top] = chart.share ? [0, 1] : [Math.min(...known), Math.max(...known)], first = chart.steps[0], last = chart.steps[chart.steps.length - 1];
    const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - 10), y = (value) => height - 40 - ((value - bottom) / (top - bottom || 1)) * (height - 70);
    const document = window.document.implementation.createDocument("http://www.w3.org/2000/svg", "svg"), root = document.documentElement;
    const add = (kind, attributes, text) => {
      const one = document.createElementNS("http://www.w3.org/2000/svg", kind);
      for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
      if (text !== undefined) one.textContent = text;
      root.append(one);
    };
    root.setAttribute("viewBox", `0 0 ${width} ${height + 16 * chart.lines.length}`);
    add("rect", { width: "100%", height: "100%", fill: palette.bg });
    const words = { "font-family": "sans-serif", "font-size": 12, fill: palette.dim };
    add("text", { ...words, x: left, y: 18, "font-weight": "bold" }, chart.title);
    add("text", { ...words, x: left - 6, y: y(top) + 4, "text-anchor": "end" }, String(Number(top.toPrecision(4))));
    add("text", { ...words, x: left - 6, y: y(bottom) + 4, "text-anchor": "end" }, String(Number(bottom.toPrecision(4))));
    add("text", { ...words, x: left, y: height - 20 }, String(first));
    add("text", { ...words, x: width - 10, y: height - 20, "text-anchor": "end" }, "step " + last);
    chart.lines.forEach((line, at) => {
      const points = chart.steps.map((step, i) => [step, line.values[i]]).filter((pair) => typeof pair[1] === "number").map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
      add("polyline", { points: points.join(" "), fill: "none", stroke: lineColour(at), "stroke-width": 1.5 });
      add("text", { ...words, x: left, y: height + 16 * at, fill: lineColour(at) }, line.name);
    });
    return new XMLSerializer().serializeToString(root);
  }
  function png(chart, plot) {
    const from = plot.plot.ctx.canvas, canvas = tag("canvas");
    canvas.width = from.width;
    canvas.height = from.height;
    const context = canvas.getContext("2d");
    context.fillStyle = palette.bg;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(from, 0, 0);
    canvas.toBlob((blob) => give(blob, name(chart, "png"), "image/png"));
  }
  function buttons(chart, plot) {
    const box = tag("div", "save");
    const add = (text, act) => { const button = tag("button", "", text); button.type = "button"; button.addEventListener("click", act); box.append(button); };
    add("CSV", () => give(csv(chart), name(chart, "csv"), "text/csv"));
    if (plot) {
      add("PNG", () => png(chart, plot));
      add("SVG", () => give(svg(chart), name(chart, "svg"), "image/svg+xml"));
    }
    return box;
  }

  return { buttons };
})(rolltape.page, rolltape.plot);
