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

const LONG = 6;  // rows of a table from which on one wants to see some of them
for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies[0].rows], bar = document.createElement("form");
  if (rows.length <= LONG) continue;
  bar.className = "filter";
  const add = (text, type) => {
    const label = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type, checked: true });
    if (type === "search") { input.placeholder = input.ariaLabel = text; label.append(input); }
    else label.append(input, ` ${text}`);
    bar.append(label);
    return input;
  };
  const head = table.tHead.rows[0].cells[0].textContent.trim().toLowerCase();
  const words = add(`Filter: ${head}`, "search"), count = document.createElement("output");
  const kinds = ["control", "ceiling", "published"]
    .filter(kind => rows.some(row => row.classList.contains(kind)))
    .map(kind => [kind, add(`${kind} rows`, "checkbox")]);
  bar.append(count);
  bar.addEventListener("submit", event => event.preventDefault());
  bar.addEventListener("input", () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const name = row.cells[0].textContent.toLowerCase();
      row.hidden = !wanted.every(word => name.includes(word))
        || kinds.some(([kind, box]) => !box.checked && row.classList.contains(kind));
    }
    const shown = rows.filter(row => !row.hidden).length;
    count.textContent = shown < rows.length ? `${shown} of ${rows.length} rows` : "";
  });
  table.parentElement.before(bar);
}

addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(part => { part.open = true; });
});
