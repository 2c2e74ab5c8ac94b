// Makes every table sortable by a click on a column's title: up, down, and back to the order of the report.
// Numbers are compared by the first number of a cell ("1.35x [1.30, 1.40]" is 1.35); cells without one stay last.
"use strict";

function numberIn(text) {
  const found = text.replace(/(\d),(?=\d{3})/g, "$1").match(/-?\d+(\.\d+)?/);
  return found ? Number(found[0]) : NaN;
}

function isNumeric(cells) {
  const known = cells.filter((text) => text !== "" && text !== "-" && text !== "n/a" && text !== "reference");
  return known.length > 0 && known.every((text) => /^\W*\d/.test(text));
}

function words(text) {
  return text.replace(/^[^\p{L}\p{N}]+/u, ""); // without the mark of the fastest
}

function compare(a, b, numeric, direction) {
  if (!numeric) return direction * words(a).localeCompare(words(b), "en", { numeric: true });
  const x = numberIn(a), y = numberIn(b);
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
  return direction * (x - y);
}

function makeSortable(table) {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  const original = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const order = next[head.getAttribute("aria-sort") || "none"];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      let rows = original;
      if (order !== "none") {
        head.setAttribute("aria-sort", order);
        const text = (row) => row.cells[column].textContent.trim();
        const numeric = isNumeric(original.map(text));
        const direction = order === "ascending" ? 1 : -1;
        rows = original.slice().sort((a, b) => compare(text(a), text(b), numeric, direction));
      }
      body.append(...rows);
    });
  });
}

document.querySelectorAll("table").forEach(makeSortable);
