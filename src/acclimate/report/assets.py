"""The page around a report: its frame, its style and its script, all within the one file.

Without the script the page shows everything, in the order it was written.
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<div id="tip" role="tooltip" hidden></div>
<script>{script}</script>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f6f4; --line: #d9d9d6;
  --ink: #1b1b1e; --faint: #64646a; --orange: #d55e00; --blue: #0072b2; --green: #009e73;
  --purple: #cc79a7; --yellow: #b58900; --sky: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --page: #17181b; --card: #202226; --line: #3a3c42;
  --ink: #e8e8ea; --faint: #a6a6ae; --orange: #f58442; --blue: #58aee6; --green: #35c79b;
  --purple: #e3a3c6; --yellow: #e0b83a; --sky: #8accf2; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0 1rem; overflow-wrap: anywhere;
  text-wrap: balance; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.5rem; overflow-wrap: anywhere; }
a { color: var(--blue); }
.lead { font-size: 1.2rem; border-left: 0.25rem solid var(--blue); padding-left: 0.9rem; }
p, li, dd, figcaption { max-width: 46rem; overflow-wrap: anywhere; }
.note, figcaption { color: var(--faint); font-size: 0.9rem; }
nav { background: var(--card); border: 1px solid var(--line); border-radius: 0.5rem;
  padding: 0.6rem 0.9rem; margin-top: 1.5rem; font-size: 0.92rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 0.2rem 1.1rem; margin: 0;
  padding: 0; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 0.5rem; }
.scroll + .scroll { margin-top: 1.25rem; }
.scroll.more caption span::after { content: " The table scrolls sideways →"; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.92rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); font-size: 0.85rem; padding: 0.5rem 0.55rem; }
caption span { position: sticky; left: 0.55rem; display: inline-block;
  max-width: min(100%, 100vw - 4rem); }
th, td { padding: 0.45rem 0.55rem; border-top: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
td.text, td.wide { text-align: left; }
td.wide { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
thead th { background: var(--card); vertical-align: bottom; white-space: normal; padding: 0;
  min-width: 4.5rem; }
th.text, th:first-child { text-align: left; }
th:first-child { position: sticky; left: 0; z-index: 1; border-right: 1px solid var(--line); }
tbody th { font-weight: 600; white-space: normal; min-width: 8.5rem; max-width: 14rem;
  background: var(--page); overflow-wrap: break-word; }
tr.control, tr.ceiling, tr.published { color: var(--faint); }
tr.control th, tr.ceiling th, tr.published th { font-weight: 400; }
th button { all: unset; box-sizing: border-box; cursor: pointer; width: 100%; font-weight: 600;
  padding: 0.45rem 0.55rem; }
th button:focus-visible { outline: 2px solid var(--blue); outline-offset: -2px; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
.badge { border: 1px solid var(--line); border-radius: 1rem; padding: 0 0.5rem;
  font-size: 0.75rem; font-weight: 400; white-space: nowrap; }
.switch { display: flex; flex-wrap: wrap; gap: 0.3rem 0.6rem; align-items: center;
  margin: 0.5rem 0 1rem; }
.switch[hidden] { display: none; }
.switch label { max-width: 100%; }
select { font: inherit; color: inherit; background: var(--card); padding: 0.3rem 0.5rem;
  border: 1px solid var(--line); border-radius: 0.4rem; max-width: 100%; }
figure { margin: 0 0 1.5rem; max-width: 36rem; }
figcaption { margin-top: 0.5rem; }
@media (min-width: 60rem) { figure { max-width: none; display: grid; gap: 1.5rem;
  grid-template-columns: minmax(0, 36rem) minmax(14rem, 1fr); } figcaption { margin-top: 0; } }
figure .scroll { padding: 0.3rem; }
svg { display: block; width: 100%; height: auto; min-width: 346px; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans",
  sans-serif !important; }
.mark { cursor: pointer; }
.mark:focus { outline: none; }
.mark:focus-visible, .mark.shown { outline: 2px solid var(--ink); outline-offset: 2px; }
#tip { position: fixed; z-index: 9; max-width: min(20rem, 90vw); padding: 0.3rem 0.6rem;
  background: var(--ink); color: var(--page); border-radius: 0.4rem; font-size: 0.85rem;
  pointer-events: none; overflow-wrap: anywhere; left: 0; top: 0; }
details { margin: 0.5rem 0; }
details .scroll { margin-top: 0.75rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
code { font-family: ui-monospace, monospace, monospace; font-size: 0.92em; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line); padding: 0.7rem;
  border-radius: 0.5rem; font-size: 0.8rem; }
dl { display: grid; grid-template-columns: minmax(7rem, auto) 1fr; gap: 0.35rem 1rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; }
@media (min-width: 48rem) { tbody th { min-width: 12rem; } }
@media print { nav, .switch, #tip { display: none; } main { max-width: none; padding: 0; }
  .scroll { overflow: visible; border: 0; } th:first-child { position: static; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } table { font-size: 8pt; } }
"""

SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const words = head.classList.contains("text");
    const now = head.getAttribute("aria-sort");
    const down = now === "none" ? !words : now === "ascending";
    const of = row => words ? row.cells[column].textContent : row.cells[column].dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      const x = of(a), y = of(b);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      const order = words ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
      return down ? -order : order;
    });
    heads.forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }));
}

const told = () => document.querySelectorAll(".scroll").forEach(box => {
  box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1);
});
addEventListener("load", told);
addEventListener("resize", told);
document.querySelectorAll("details").forEach(one => one.addEventListener("toggle", told));

const switches = [...document.querySelectorAll(".switch select")];
const choose = rule => {
  switches.forEach(other => { other.value = rule; });
  document.querySelectorAll("[data-rule]").forEach(part => {
    part.hidden = part.dataset.rule !== rule;
  });
  told();
};
switches.forEach(one => {
  one.closest(".switch").hidden = false;
  one.addEventListener("change", () => choose(one.value));
});
if (switches.length) choose(switches[0].value);

const tip = document.getElementById("tip");
let shown = null;
const hide = () => {
  if (shown) shown.classList.remove("shown");
  shown = null;
  tip.hidden = true;
};
const show = mark => {
  if (shown === mark) return;
  hide();
  shown = mark;
  mark.classList.add("shown");
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const at = mark.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const middle = Math.min(at.left + at.width / 2, innerWidth - 8);
  const left = Math.max(4, Math.min(middle - size.width / 2, innerWidth - size.width - 4));
  const above = at.top - size.height - 8;
  tip.style.left = left + "px";
  tip.style.top = (above > 4 ? above : at.bottom + 8) + "px";
};
for (const svg of document.querySelectorAll("svg")) {
  const marks = [...svg.querySelectorAll(".mark")];
  if (!marks.length) continue;
  svg.setAttribute("role", "group");
  marks.forEach((mark, i) => {
    const title = mark.querySelector("title");
    mark.setAttribute("aria-label", title.textContent);
    mark.setAttribute("role", "img");
    mark.setAttribute("tabindex", i ? "-1" : "0");
    title.remove();  // else the browser's own tooltip would come on top of ours
    mark.addEventListener("focus", () => show(mark));
    mark.addEventListener("blur", hide);
  });
  const go = (from, to) => {
    from.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  };
  svg.addEventListener("keydown", event => {
    const i = marks.indexOf(event.target), n = marks.length;
    const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1,
      Home: 0, End: n - 1 }[event.key];
    if (i < 0 || to === undefined) return;
    event.preventDefault();
    go(marks[i], marks[(to + n) % n]);
  });
  const nearest = event => {
    let best = null, least = 14;  // pixels: a finger is wider than a mark
    for (const mark of marks) {
      const at = mark.getBoundingClientRect();
      const x = Math.max(at.left - event.clientX, 0, event.clientX - at.right);
      const y = Math.max(at.top - event.clientY, 0, event.clientY - at.bottom);
      if (Math.hypot(x, y) < least) { least = Math.hypot(x, y); best = mark; }
    }
    return best;
  };
  const point = event => {
    const mark = nearest(event);
    if (mark) show(mark); else hide();
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hide(); });
}
document.addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
addEventListener("scroll", hide, { passive: true, capture: true });
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(part => { part.open = true; });
});
"""
