"""Style of HTML pages: audit report and migration history; light, dark and print.

A column of a table is as wide as its content, and a wide table scrolls in its card. Only sentences
(`words`) are broken into lines.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #ffffff; --ink: #1d2129; --soft: #5f6673; --rule: #e3e5e9;
  --blue: #2a62c9; --blue-soft: #2a62c91f; --amber: #b45309; --band: #2a62c90d;
  --good: #17723f; --good-soft: #17723f1a; --bad: #b42323; --bad-soft: #b423231a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14161a; --card: #1b1e24; --ink: #e6e8ec; --soft: #9aa2b0; --rule: #2c313a;
    --blue: #7aa7f7; --blue-soft: #7aa7f72b; --amber: #f0a44b; --band: #7aa7f712;
    --good: #5bc98a; --good-soft: #5bc98a22; --bad: #f28b82; --bad-soft: #f28b8222;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 32px 20px 64px; max-width: 1000px;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 10px; }
p { margin: 4px 0; }
.soft, .legend, .empty { color: var(--soft); }
.card {
  background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 14px 16px; overflow-x: auto;
}
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 10px;
  margin-top: 20px; }
.tile b { display: block; font-size: 22px; font-weight: 600; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-size: 13px; font-weight: 500; }
th, td { padding: 6px 16px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top;
  white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
.number { text-align: right; white-space: nowrap; }
.when { white-space: nowrap; color: var(--soft); }
.words { white-space: normal; overflow-wrap: break-word; }
td.words, td .words { min-width: 220px; max-width: 520px; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.state { display: inline-block; padding: 1px 8px; border-radius: 9px; font-size: 13px;
  white-space: nowrap; background: var(--blue-soft); color: var(--blue); }
.good { background: var(--good-soft); color: var(--good); }
.bad { background: var(--bad-soft); color: var(--bad); }
p.good, p.bad { display: inline-block; padding: 4px 12px; border-radius: 6px; font-weight: 600; }
b.good, b.bad { background: none; }
.bar { height: 6px; min-width: 90px; border-radius: 3px; background: var(--rule);
  overflow: hidden; margin-top: 8px; }
.bar i { display: block; height: 100%; background: var(--blue); }
svg { display: block; width: 100%; height: auto; min-width: 560px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick { fill: var(--soft); font-size: 12px; }
.run { fill: var(--band); }
.mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
.area { opacity: 0.12; }
.hit { fill: transparent; }
.hit:hover { fill: var(--blue-soft); }
.limit { fill: none; stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 6 4; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; margin-bottom: 6px; }
details summary { cursor: pointer; color: var(--soft); margin: 10px 0 6px; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; }
.key i.band { background: var(--blue-soft); }
@media (max-width: 600px) { body { padding: 18px 12px 40px; } h1 { font-size: 20px; }
  .card { padding: 12px; } .tiles { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); } }
@media print { body { max-width: none; padding: 0; } .card { break-inside: avoid; } }
"""
