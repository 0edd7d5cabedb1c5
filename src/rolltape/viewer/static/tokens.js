// Colours tokens by a number that was recorded for each, and says the numbers of the one pointed at.
"use strict";
rolltape.tokens = (({ main, tag, read, short, place, setQuery }) => {
  const tip = document.getElementById("tip");

  function bins(scale) {
    const values = scale.values.filter((v) => typeof v === "number");
    if (scale.kind === "low") {
      const end = values.reduce((a, b) => Math.min(a, b), -1e-12);
      return { low: end, high: 0, of: (v) => (v >= 0 ? "" : "h" + Math.max(1, Math.min(8, Math.ceil((8 * v) / end)))) };
    }
    const end = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-12);
    return { low: -end, high: end, of: (v) => (v === 0 ? "" : (v < 0 ? "h" : "l") + Math.max(1, Math.min(8, Math.ceil((8 * Math.abs(v)) / end)))) };
  }
  function colour() {
    const select = main.querySelector("#color");
    if (!select) return;
    const boxes = [...main.querySelectorAll('.tokens[data-side="response"]')];
    const apart = main.querySelector("#apart"), extra = apart ? read(apart) : [];
    const data = [...main.querySelectorAll("#scales, script.scales")].map(read).map((scales) => [...scales, ...extra]);
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
      box.sides = data.length > 1 ? data : null;
    });
    if (range) {
      legend.append(tag("b", "", short(range.low, 3)));
      const both = joint[0].kind === "both";
      for (let at = 8; at >= 1; at--) legend.append(tag("i", "h" + at));
      if (both) for (let at = 1; at <= 8; at++) legend.append(tag("i", "l" + at));
      legend.append(tag("b", "", short(range.high, 3)));
    }
  }
  // Of two runs: what each has, and one number where they have the same.
  function both(sides, name, at) {
    const values = sides.map((scales) => scales.find((scale) => scale.name === name)).map((scale) => (scale && at < scale.values.length ? short(scale.values[at], 7) : "–"));
    return values[0] === values[1] ? values[0] : values.join(" → ");
  }
  function hover(event) {
    const token = event.target.closest ? event.target.closest(".tok") : null;
    if (!token) { tip.hidden = true; return; }
    const at = Number(token.dataset.i), lines = [`token ${at}   id ${token.dataset.id}`];
    const { scales, sides } = token.parentElement;
    for (const scale of scales || []) if (at < scale.values.length) lines.push(`${scale.name}   ${sides ? both(sides, scale.name, at) : short(scale.values[at])}`);
    if (token.classList.contains("untrained")) lines.push("not trained on");
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const edge = token.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(edge.left, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (edge.bottom + tip.offsetHeight + 8 > innerHeight ? edge.top - tip.offsetHeight - 6 : edge.bottom + 6) + "px";
  }
  function ready() {
    const select = main.querySelector("#color"), wanted = place().query.get("color");
    tip.hidden = true;
    if (!select) return;
    if (wanted && [...select.options].some((option) => option.value === wanted)) select.value = wanted;
    select.addEventListener("change", () => { setQuery("color", select.selectedIndex ? select.value : ""); colour(); });
    colour();
    const box = main.querySelector("[data-token]"), wished = box ? box.querySelectorAll(`.tok[data-i="${Number(box.dataset.token)}"]`) : [];
    wished.forEach((token) => token.classList.add("here"));
    if (wished.length) wished[0].scrollIntoView({ block: "center" });
  }
  document.addEventListener("pointerover", hover);

  return { ready };
})(rolltape.page);
