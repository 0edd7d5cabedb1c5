"use strict";
const at = id => document.getElementById(id);
const words = {asked:"asked", replayed:"from the tape", live:"live", recorded:"recorded", missed:"missed",
  retried:"sent again", aborted:"broken off", passed:"control", failed:"unreachable"};
const text = value => value === null || value === undefined ? "" : String(value);
function card(list, name, value, bad) {
  const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
  dt.textContent = name; dd.textContent = typeof value === "number" ? value.toLocaleString("en") : value; if (bad) dd.className = "bad";
  box.append(dt, dd); list.append(box);
}
function rows(id, names, found) {
  const table = at(id); table.replaceChildren();
  at(id + "-part").hidden = !found.length;
  if (!found.length) return;
  const head = table.insertRow();
  for (const name of names) { const th = document.createElement("th"); th.textContent = name; head.append(th); }
  for (const one of found) {
    const row = table.insertRow();
    for (const [value, kind] of one) { const cell = row.insertCell(); cell.textContent = text(value); if (kind) cell.className = kind; }
  }
}
async function look() {
  try {
    const answer = await fetch("/rolltape/status" + location.search, {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
  } catch (error) { at("state").textContent = "the server has ended or cannot be reached"; document.title = "✕ rolltape serve"; }
  setTimeout(look, 1000);
}
function show(s) {
  const now = s.in_flight.calls ? `▶ ${s.in_flight.calls} in flight, ` : "";
  document.title = s.calls.missed ? `(${s.calls.missed} missed) rolltape serve` : `${now}${s.calls.asked} calls · rolltape serve`;
  at("state").textContent = `mode ${s.mode} · step ${s.step} · ${s.seconds} s · ${s.on_tape} calls on the tape`
    + (s.waiting.files ? ` · ${s.waiting.files} file${s.waiting.files === 1 ? " waits" : "s wait"} for the store` : "");
  const cards = at("calls"); cards.replaceChildren();
  card(cards, "calls per second", s.per_second);
  card(cards, "in flight", s.in_flight.calls);
  for (const [name, word] of Object.entries(words))
    card(cards, word, s.calls[name], s.calls[name] && (name === "missed" || name === "failed"));
  const levels = at("levels"); levels.replaceChildren();
  for (const [name, n] of Object.entries(s.levels)) card(levels, name, n);
  if (s.by_content.calls) card(levels, "samples by content, no replay", s.by_content.samples);
  const gate = at("gate"); gate.replaceChildren();
  card(gate, "order", s.gate.order); card(gate, "held back", s.gate.waiting); card(gate, "let go", s.gate.let_go);
  card(gate, "never asked for", s.unplayed);
  rows("waits", ["waits for", "step", "turn"], s.gate.waits_for.map(w => [[w.session || `arrival ${w.arrival}`], [w.step], [w.turn]]));
  rows("flight", ["for seconds", "step", "session", "path"], s.in_flight.oldest.map(c => [[c.seconds], [c.step], [c.session], [c.path]]));
  rows("hosts", ["server", "state", "calls", "failed"], s.upstream.hosts.map(h =>
    [[h.url], [h.healthy ? "well" : "cannot be reached", h.healthy ? "good" : "bad"], [h.calls], [h.failed]]));
  rows("misses", ["path", "session", "why no recording answers"], s.misses.slice().reverse().map(m => [[m.path], [m.session], [m.reason]]));
  rows("differs", ["field", "calls in which it differs"], Object.entries(s.differs).map(([name, n]) => [[name], [n]]));
}
look();
