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

addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(part => { part.open = true; });
});
