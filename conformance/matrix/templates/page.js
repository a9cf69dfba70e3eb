"use strict";
// Adds a filter; the page is whole without it.
(() => {
  const form = document.getElementById("filter");
  const format = document.getElementById("filter-format");
  const status = document.getElementById("filter-status");
  const count = document.getElementById("filter-count");
  const open = document.getElementById("open-all");
  const rows = [...document.querySelectorAll("tr[data-format]")];
  const cells = [...document.querySelectorAll("section.cell")];
  const shown = (element) =>
    element.dataset.format.toLowerCase().includes(format.value.trim().toLowerCase()) &&
    (status.value === "" || element.dataset.status.split(/\s+/).includes(status.value));
  const apply = () => {
    for (const element of [...rows, ...cells]) element.hidden = !shown(element);
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = left === rows.length ? "" : `${left} of ${rows.length} formats`;
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  format.addEventListener("input", apply);
  status.addEventListener("change", apply);
  const findings = document.querySelectorAll("details.finding");
  open.hidden = findings.length === 0;
  open.addEventListener("click", () => {
    const all = open.getAttribute("aria-pressed") !== "true";
    open.setAttribute("aria-pressed", String(all));
    for (const finding of findings) finding.open = all;
  });
  // A link to a finding opens it where the browser does not.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
