"use strict";
// Sorts and filters the table; the theme follows the system until the button says otherwise.
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = prefersDark.matches ? "dark" : "light";
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});

const body = document.querySelector("#points tbody");
const rows = [...body.rows];
const valueOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent;
  const number = Number(text);
  return text !== "" && !Number.isNaN(number) ? number : text;
};
document.querySelectorAll("#points th button").forEach((button, column) => {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const ascending = head.ariaSort !== "ascending";
    document.querySelectorAll("#points th").forEach((other) => { other.ariaSort = "none"; });
    head.ariaSort = ascending ? "ascending" : "descending";
    rows.sort((a, b) => {
      const [x, y] = [valueOf(a, column), valueOf(b, column)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return ascending ? order : -order;
    });
    body.append(...rows);
  });
});

const filter = document.getElementById("filter");
const only = document.getElementById("only");
const show = () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word)) || (only.checked && !row.classList.contains("front"));
    shown += !row.hidden;
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} points`;
};
filter.addEventListener("input", show);
only.addEventListener("change", show);
show();
