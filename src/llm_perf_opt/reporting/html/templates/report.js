"use strict";
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);

  // Every node is built here from text; nothing that came from a run is ever parsed as markup.
  function make(tag, text, className) {
    const node = document.createElement(tag);
    if (text) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  // --- colour theme ---------------------------------------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  const themeButton = document.getElementById("theme");
  function remembered() {
    try { return localStorage.getItem("llm-perf-opt-theme"); } catch { return null; }  // blocked for local files
  }
  function setTheme(name, keep) {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    themeButton.textContent = "Theme: " + name;
    themeButton.setAttribute("aria-label", "Colour theme: " + (name === "auto" ? "automatic" : name));
    themeButton.dataset.name = name;
    if (keep) try { localStorage.setItem("llm-perf-opt-theme", name); } catch { /* the choice lasts for this visit */ }
  }
  setTheme(themes.includes(remembered()) ? remembered() : "auto", false);
  themeButton.addEventListener("click", () => {
    setTheme(themes[(themes.indexOf(themeButton.dataset.name) + 1) % themes.length], true);
  });

  // --- tables: sort, filter, fold ---------------------------------------------------------------------------
  class DataTable {
    constructor(box) {
      this.box = box;
      this.body = box.querySelector("tbody");
      this.text = "";
      this.group = "";
      this.depth = Infinity;
      this.rows = [];
      for (const tr of this.body.rows) {
        if (tr.classList.contains("detail")) this.rows[this.rows.length - 1].detail = tr;
        else this.rows.push({ tr, detail: null, children: [], parent: null, open: true, place: this.rows.length, words: DataTable.words(tr) });
      }
      for (const row of this.rows) if (row.detail) row.words += " " + row.detail.textContent.toLowerCase();
      this.label();
      this.link();
      this.addSorting();
      this.addFolding();
      this.addTools();
    }

    static words(tr) {
      const whole = [...tr.cells].map((cell) => cell.title).join(" ");
      return (tr.textContent + " " + whole).toLowerCase();
    }

    // On a phone a row becomes a card: every cell says which column it is of, the name gets a line of its own.
    label() {
      const heads = [...this.box.querySelectorAll("thead th")].map((head) => head.textContent);
      for (const { tr } of this.rows) {
        const name = Math.max(0, [...tr.cells].findIndex((cell) => cell.querySelector("code")));
        [...tr.cells].forEach((cell, column) => {
          cell.dataset.label = heads[column];
          const length = cell.textContent.trim().length;
          if (column === name || length > 30) cell.classList.add("wide");
          else if (length + heads[column].length > 18) cell.classList.add("line");
          else if (["", "–"].includes(cell.textContent.trim()) || heads[column] === "#") cell.classList.add("none");
        });
      }
      this.box.classList.add("live");
    }

    link() {
      const byKey = new Map(this.rows.filter((row) => row.tr.dataset.key).map((row) => [row.tr.dataset.key, row]));
      for (const row of this.rows) {
        row.parent = byKey.get(row.tr.dataset.parent) || null;
        if (row.parent) row.parent.children.push(row);
      }
      this.roots = this.rows.filter((row) => !row.parent);
      this.isTree = this.roots.length < this.rows.length;
    }

    // On a phone one menu stands for the buttons of all columns.
    addSortMenu(heads) {
      if (!this.box.querySelector("table.stack") || this.rows.length < 3) return;
      const menu = make("select", "");
      menu.append(new Option("as given", ""));
      heads.forEach((head, column) => {
        const numeric = head.classList.contains("num");
        for (const sign of numeric ? [-1, 1] : [1, -1]) {
          menu.append(new Option(head.textContent + (sign > 0 ? " \u25B2" : " \u25BC"), column + ":" + sign));
        }
      });
      menu.addEventListener("change", () => {
        const [column, sign] = menu.value.split(":").map(Number);
        if (!menu.value) this.restore();
        else this.sort(column, heads[column].classList.contains("num"), sign);
      });
      const label = make("label", "Sort by ", "sortmenu");
      label.append(menu);
      this.box.insertBefore(label, this.box.querySelector(".scroll"));
    }

    restore() {
      const append = (rows) => {
        for (const row of rows.sort((a, b) => a.place - b.place)) {
          this.body.append(row.tr);
          if (row.detail) this.body.append(row.detail);
          append(row.children);
        }
      };
      append(this.roots);
    }

    addSorting() {
      const heads = [...this.box.querySelectorAll("thead th")];
      this.addSortMenu(heads);
      heads.forEach((head, column) => {
        const button = make("button", head.textContent, "sort");
        button.type = "button";
        if (head.title) button.setAttribute("aria-label", head.textContent + ", " + head.title);
        head.replaceChildren(button);
        button.addEventListener("click", () => {
          const first = head.classList.contains("num") ? "descending" : "ascending";
          const other = first === "ascending" ? "descending" : "ascending";
          const order = head.getAttribute("aria-sort") === first ? other : first;
          heads.forEach((each) => each.removeAttribute("aria-sort"));
          head.setAttribute("aria-sort", order);
          this.sort(column, head.classList.contains("num"), order === "ascending" ? 1 : -1);
        });
      });
    }

    sort(column, numeric, sign) {
      const value = (row) => {
        const cell = row.tr.cells[column];
        if (numeric) return "v" in cell.dataset ? Number(cell.dataset.v) : null;
        return cell.textContent.trim().toLowerCase();
      };
      const compare = (a, b) => {
        const x = value(a), y = value(b);
        if (x === null || y === null) return (x === null) - (y === null) || a.place - b.place;  // unknown stays last
        const order = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
        return sign * order || a.place - b.place;
      };
      const append = (rows) => {
        for (const row of rows.sort(compare)) {
          this.body.append(row.tr);
          if (row.detail) this.body.append(row.detail);
          append(row.children);
        }
      };
      append(this.roots);
    }

    addFolding() {
      const unfolds = this.rows.some((row) => row.detail || row.children.length);
      if (!unfolds) return;
      for (const row of this.rows) {
        const cell = row.tr.querySelector("code") ? row.tr.querySelector("code").parentElement : row.tr.cells[0];
        const before = cell.querySelector("code") || cell.firstChild;
        if (row.children.length) cell.insertBefore(this.foldButton(row, "Rows below", true, () => { row.open = !row.open; this.show(); return row.open; }), before);
        else if (this.isTree) cell.insertBefore(make("span", "", "nofold"), before);
        if (row.detail) {
          const fold = this.foldButton(row, "Details", false, () => { row.detail.hidden = !row.detail.hidden; return !row.detail.hidden; });
          cell.insertBefore(fold, before);
        } else if (!this.isTree) cell.insertBefore(make("span", "", "nofold"), before);
      }
    }

    foldButton(row, what, open, toggle) {
      const button = make("button", "", "fold");
      const named = row.tr.querySelector("code") || row.tr.cells[0];
      button.type = "button";
      button.setAttribute("aria-label", what + " of " + named.textContent.trim().slice(0, 120));
      button.setAttribute("aria-expanded", String(open));
      button.addEventListener("click", () => button.setAttribute("aria-expanded", String(toggle())));
      if (what === "Rows below") row.button = button;
      else row.detailButton = button;
      return button;
    }

    addTools() {
      const tools = this.box.querySelector(".tools");
      if (!tools) return;
      tools.hidden = false;
      this.count = tools.querySelector("[data-count]");
      tools.querySelector("[data-filter]").addEventListener("input", (event) => {
        this.text = event.target.value.trim().toLowerCase();
        this.show();
      });
      const group = tools.querySelector("[data-group]");
      if (group) group.addEventListener("change", () => { this.group = group.value; this.show(); });
      const depth = tools.querySelector("[data-depth]");
      if (!depth) return;
      const unfold = () => {
        for (const row of this.rows) {
          row.open = Number(row.tr.dataset.depth || 0) < Number(depth.value);
          if (row.button) row.button.setAttribute("aria-expanded", String(row.open));
        }
        this.show();
      };
      depth.addEventListener("change", unfold);
      unfold();
    }

    show() {
      const words = this.text.split(/\s+/).filter(Boolean);
      const hit = (row) => (!this.group || row.tr.dataset.group === this.group) && words.every((word) => row.words.includes(word));
      const wanted = new Set(this.rows.filter(hit));
      const shown = new Set(wanted);
      if (words.length) for (const row of wanted) for (let up = row.parent; up; up = up.parent) shown.add(up);
      let visible = 0;
      for (const row of this.rows) {
        let on = shown.has(row);
        // While a filter is on, folded branches open, so that every match can be seen.
        if (on && !words.length) for (let up = row.parent; up; up = up.parent) on = on && up.open;
        row.tr.hidden = !on;
        if (row.detail) row.detail.hidden = !on || row.detailButton.getAttribute("aria-expanded") !== "true";
        if (on) visible += 1;
      }
      if (this.count) this.count.textContent = visible === this.rows.length ? visible + " rows" : visible + " of " + this.rows.length + " rows";
    }
  }
  for (const box of document.querySelectorAll(".table")) new DataTable(box);

  // --- details of the marks of a roofline -------------------------------------------------------------------
  for (const panel of document.querySelectorAll(".point")) {
    const points = data.points[panel.id] || {};
    for (const mark of panel.parentElement.querySelectorAll("circle[data-name]")) {
      const point = points[mark.dataset.kernel || mark.dataset.name];
      if (!point) continue;
      const tell = () => {
        const list = make("dl", "", "facts");
        for (const [label, value] of point.facts) {
          const pair = make("div", "", value.length > 60 ? "wide" : "");
          pair.append(make("dt", label), make("dd", value));
          list.append(pair);
        }
        panel.replaceChildren(make("h3", point.title), list);
        panel.hidden = false;
      };
      for (const kind of ["focus", "pointerenter", "click"]) mark.addEventListener(kind, tell);
    }
  }

  // --- a phone folds what a desk shows open ------------------------------------------------------------------
  if (matchMedia("(max-width:40rem)").matches) for (const each of document.querySelectorAll("details.trust")) each.open = false;

  // --- paper shows what is folded on the screen -------------------------------------------------------------
  let folded = [], hidden = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
    hidden = [...document.querySelectorAll("table.tree tr[data-key][hidden]")];
    for (const row of hidden) row.hidden = false;
  });
  addEventListener("afterprint", () => {
    for (const each of folded) each.open = false;
    for (const row of hidden) row.hidden = true;
  });
})();
