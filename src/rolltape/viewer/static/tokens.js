// Colours tokens by a number that was recorded for each, and says the numbers of the one pointed at.
"use strict";
rolltape.tokens = (({ main, tag, read, short, place, setQuery }) => {
  const tip = document.getElementById("tip");

  const CHUNK = 1000; // tokens of a long text that are made at once
  function bytes(text) {
    const raw = atob(text), found = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at++) found[at] = raw.charCodeAt(at);
    return found.buffer;
  }
  // Of many numbers the page has the bytes.
  function unpacked(scales) {
    for (const scale of scales) if (scale.packed !== undefined) { scale.values = new Float32Array(bytes(scale.packed)); delete scale.packed; }
    return scales;
  }
  // A number, the name of one that is not finite, or nothing.
  function valueAt(scale, at) {
    const value = scale && at < scale.values.length ? scale.values[at] : undefined;
    return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
  }
  function tokenOf(box, at, text) {
    const { ids, trained, named } = box.packed, token = tag("span", "tok" + (trained[at] ? "" : " untrained") + (box.dataset.mark === String(at) ? " differs" : ""));
    token.dataset.i = at;
    token.dataset.id = ids[at];
    if (!named) token.textContent = ids[at];
    else if (text === undefined || text.length === 0) token.append(tag("span", "esc", "·"));
    else if (typeof text === "string") token.textContent = text;
    else for (const [piece, escaped] of text) token.append(escaped ? tag("span", "esc", piece) : piece);
    if (box.paint) box.paint(token);
    return token;
  }
  async function fill(box, chunk) {
    if (chunk.dataset.made) return;
    chunk.dataset.made = "1";
    const start = Number(chunk.dataset.from), { named, count } = box.packed;
    let texts = box.packed.texts ? box.packed.texts.slice(start, start + CHUNK) : [];
    if (named && box.dataset.spell) {
      try { texts = (await (await fetch(box.dataset.spell + (box.dataset.spell.includes("?") ? "&" : "?") + "from=" + start)).json()).texts; } catch { delete chunk.dataset.made; return; }
    }
    const made = document.createDocumentFragment();
    for (let at = start; at < Math.min(start + CHUNK, count); at++) { made.append(tokenOf(box, at, texts[at - start])); if (!named) made.append(" "); }
    chunk.replaceChildren(made);
    chunk.classList.remove("empty");
    mark();
  }
  // A long text is made as it is scrolled to.
  function long(box) {
    const data = read(box.querySelector("script"));
    box.packed = { ...data, ids: typeof data.ids === "string" ? new Int32Array(bytes(data.ids)) : data.ids, trained: new Uint8Array(bytes(data.trained)) };
    const seen = new IntersectionObserver((entries) => { for (const entry of entries) if (entry.isIntersecting) fill(box, entry.target); }, { rootMargin: "800px" });
    for (let at = 0; at < data.count; at += CHUNK) {
      const chunk = tag("div", "chunk empty");
      chunk.dataset.from = at;
      chunk.dataset.name = `${at.toLocaleString("en")} –`;
      box.append(chunk);
      seen.observe(chunk);
    }
    fill(box, box.querySelector(".chunk")); // the text before it may be long, too
  }
  function mark() {
    const box = main.querySelector("[data-token]"), wished = box ? box.querySelectorAll(`.tok[data-i="${Number(box.dataset.token)}"]`) : [];
    wished.forEach((token) => token.classList.add("here"));
    return wished;
  }
  // How colours go with the numbers of one scale, in one run or two.
  function bins(scales) {
    let low = 0, high = 0;
    for (const { values } of scales) for (const value of values) {
      if (typeof value !== "number" || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (scales[0].kind === "low") {
      const end = Math.min(low, -1e-12);
      return { low: end, high: 0, of: (v) => (v >= 0 ? "" : "h" + Math.max(1, Math.min(8, Math.ceil((8 * v) / end)))) };
    }
    const end = Math.max(-low, high, 1e-12);
    return { low: -end, high: end, of: (v) => (v === 0 ? "" : (v < 0 ? "h" : "l") + Math.max(1, Math.min(8, Math.ceil((8 * Math.abs(v)) / end)))) };
  }
  // Read once: a long text has megabytes of them.
  const known = new WeakMap();
  const numbers = (element) => { if (!known.has(element)) known.set(element, unpacked(read(element))); return known.get(element); };
  function colour() {
    const select = main.querySelector("#color");
    if (!select) return;
    const boxes = [...main.querySelectorAll('.tokens[data-side="response"]')];
    const apart = main.querySelector("#apart"), extra = apart ? numbers(apart) : [];
    const data = [...main.querySelectorAll("#scales, script.scales")].map(numbers).map((scales) => [...scales, ...extra]);
    const legend = main.querySelector("#scale");
    legend.replaceChildren();
    const joint = data.map((scales) => scales.find((scale) => scale.name === select.value)).filter(Boolean);
    const range = joint.length ? bins(joint) : null;
    boxes.forEach((box, side) => {
      const scale = (data[side] || []).find((one) => one.name === select.value);
      box.paint = (token) => {
        const value = valueAt(scale, Number(token.dataset.i));
        token.classList.remove(...[...token.classList].filter((name) => /^[hl]\d$|^nan$/.test(name)));
        if (value === undefined) return;
        const name = typeof value === "number" ? range.of(value) : "nan";
        if (name) token.classList.add(name);
      };
      box.querySelectorAll(".tok").forEach(box.paint);
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
    const values = sides.map((scales) => scales.find((scale) => scale.name === name)).map((scale) => valueAt(scale, at)).map((value) => (value === undefined ? "–" : short(value, 7)));
    return values[0] === values[1] ? values[0] : values.join(" → ");
  }
  function hover(event) {
    const token = event.target.closest ? event.target.closest(".tok") : null;
    if (!token) { tip.hidden = true; return; }
    const at = Number(token.dataset.i), lines = [`token ${at}   id ${token.dataset.id}`];
    const { scales, sides } = token.closest(".tokens");
    for (const scale of scales || []) if (at < scale.values.length) lines.push(`${scale.name}   ${sides ? both(sides, scale.name, at) : short(valueAt(scale, at))}`);
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
    main.querySelectorAll(".tokens.long").forEach(long);
    const wish = main.querySelector("[data-token]");
    if (wish) for (const box of wish.querySelectorAll(".tokens.long")) { const chunk = box.querySelector(`.chunk[data-from="${Math.floor(Number(wish.dataset.token) / CHUNK) * CHUNK}"]`); if (chunk) fill(box, chunk); }
    if (!select) return;
    if (wanted && [...select.options].some((option) => option.value === wanted)) select.value = wanted;
    select.addEventListener("change", () => { setQuery("color", select.selectedIndex ? select.value : ""); colour(); });
    colour();
    const wished = mark();
    if (wished.length) wished[0].scrollIntoView({ block: "center" });
  }
  document.addEventListener("pointerover", hover);

  return { ready };
})(rolltape.page);
