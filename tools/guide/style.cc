#include "tools/guide/style.h"

namespace regard::guide {

const char* style_sheet() {
  return R"css(
:root { color-scheme: light dark; --ink: #1f2328; --faint: #59636e; --page: #ffffff;
  --grid: #d8dee4; --card: #f6f8fa; --link: #0757ba; --good: #116329; --bad: #a40e26;
  --c0: #0757ba; --c1: #b3470b; --c2: #6f3fc0; --c3: #116329; --c4: #9c2a6f; --c5: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #f0f6fc; --faint: #a3adb8; --page: #0d1117; --grid: #343b44; --card: #161b22;
    --link: #79b8ff; --good: #56d364; --bad: #ff8f85;
    --c0: #79b8ff; --c1: #ffab70; --c2: #c8a8ff; --c3: #56d364; --c4: #f09ad0; --c5: #a3adb8; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
header, main, footer { max-width: 60rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 1.5rem 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--grid);
  padding-top: 1.25rem; }
h3 { font-size: 1.05rem; margin: 1.25rem 0 .25rem; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--page); padding: .5rem; }
.facts { color: var(--faint); margin: 0 0 1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; list-style: none; }
#answers { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: .25rem 1.25rem 1rem; }
#answers h2 { border: 0; margin: .75rem 0 0; padding: 0; }
#answers h3 a { font-weight: 400; font-size: .9rem; margin-left: .5rem; }
#answers ul { margin: .25rem 0; padding-left: 1.25rem; }
#answers li, p, dd { overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
.chart { width: 100%; height: auto; max-width: 45rem; display: block;
  font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
.chart text { fill: var(--ink); }
.chart .tick { fill: var(--faint); }
.chart .middle { text-anchor: middle; }
.chart .end { text-anchor: end; }
.chart .grid { stroke: var(--grid); fill: none; }
.chart .axis { stroke: var(--faint); fill: none; }
.chart .limit { stroke: var(--faint); stroke-dasharray: 10 5; fill: none; }
.chart .way { fill: none; stroke-width: 2; }
.chart .lead { fill: none; stroke-width: 1; opacity: .5; }
.chart .stroke { fill: none; stroke-width: 2.5; }
.line0 { stroke: var(--c0); fill: var(--c0); } .line1 { stroke: var(--c1); fill: var(--c1); }
.line2 { stroke: var(--c2); fill: var(--c2); } .line3 { stroke: var(--c3); fill: var(--c3); }
.line4 { stroke: var(--c4); fill: var(--c4); } .line5 { stroke: var(--c5); fill: var(--c5); }
.line1 .way { stroke-dasharray: 7 3; } .line2 .way { stroke-dasharray: 2 3; }
.line3 .way { stroke-dasharray: 9 3 2 3; } .line4 .way { stroke-dasharray: 4 2; }
.line5 .way { stroke-dasharray: 12 4; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; color: var(--faint); padding: .25rem 0; }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
thead th { border-bottom: 2px solid var(--grid); white-space: nowrap; }
tbody th { font-weight: 600; min-width: 6rem; }
td:not([class]):not(:empty) { min-width: 8rem; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.best { font-weight: 700; }
td.yes { color: var(--good); } td.no { color: var(--bad); }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
footer { color: var(--faint); padding: 2rem 1rem; }
@media (max-width: 40rem) { body { font-size: 15px; } h1 { font-size: 1.4rem; }
  .chart { min-width: 34rem; } #answers { padding: .25rem .75rem .75rem; } }
@media print {
  :root { --ink: #000; --faint: #444; --page: #fff; --grid: #bbb; --card: #fff; --link: #000;
    --good: #000; --bad: #000; --c0: #000; --c1: #444; --c2: #222; --c3: #555; --c4: #111;
    --c5: #666; }
  body { font-size: 10pt; } nav, .skip { display: none; } .scroll { overflow: visible; }
  table { font-size: 8pt; } thead th, td.number { white-space: normal; } figure, tr { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
  thead { display: table-header-group; } .chart { max-width: 14cm; min-width: 0; }
}
)css";
}

}  // namespace regard::guide
