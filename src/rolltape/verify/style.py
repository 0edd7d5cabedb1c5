"""The looks of the page: in light, in dark, on paper."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --soft: #5f6773; --line: #e2e5e9;
  --card: #f7f8fa; --a: #2563eb; --b: #d9480f; --good: #15803d; --bad: #c62828; --heat: 220, 38, 38; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #14171a; --soft: #9aa3ad; --line: #2c3238; --card: #1b1f24;
    --a: #7aa7ff; --b: #ff9a5c; --good: #5fd38d; --bad: #ff7b72; --heat: 248, 81, 73; }
  .tag { color: #14171a !important; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1060px; padding: 2rem 1.2rem 4rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.25rem; line-height: 1.4; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 2rem 0 .6rem; }
code { font: .92em ui-monospace, monospace; }
.tag { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-weight: 600;
  font-size: .8rem; color: #fff; background: var(--good); }
.tag.bad { background: var(--bad); }
.cause { border-left: 3px solid var(--b); padding: .3rem .8rem; background: var(--card); margin: .5rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th { text-align: left; color: var(--soft); font-weight: 600; white-space: nowrap; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: break-word; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .6rem; background: var(--card); border-radius: .5rem; break-inside: avoid; }
figcaption { font-weight: 600; font-size: .85rem; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg.spark { width: 6rem; height: 1.2rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
polyline { fill: none; stroke-width: 1.6; }
polyline.before { stroke: var(--a); }
polyline.after { stroke: var(--b); stroke-dasharray: 5 3; }
circle.before { fill: var(--a); }
circle.after { fill: var(--b); }
line.err { stroke: var(--soft); stroke-width: 2; }
line.bad { stroke: var(--bad); stroke-width: 2; }
line.axis { stroke: var(--line); }
.key { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.key b.a { color: var(--a); }
.key b.b { color: var(--b); }
.sample { margin: .8rem 0; break-inside: avoid; overflow-wrap: anywhere; }
.said { color: var(--soft); white-space: pre-wrap; }
.tokens { font: 12px/1.9 ui-monospace, monospace; }
.tokens span { padding: .1rem .25rem; border-radius: .2rem; margin-right: .15rem; white-space: pre-wrap; }
.soft { color: var(--soft); }
.good { color: var(--good); }
.same { font-size: .85rem; overflow-wrap: anywhere; }
.worse { color: var(--bad); font-weight: 600; }
@page { margin: 14mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 12px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .wide { overflow: visible; }
  table { font-size: .74rem; }
  th, td { padding-right: .5rem; }
  h2 { break-after: avoid; }
  tr { break-inside: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
  svg.spark { width: 4rem; }
}
"""
