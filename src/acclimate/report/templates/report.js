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
