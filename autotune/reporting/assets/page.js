// The page's own script: theme, navigation, sorted tables, and what the charts' controls choose.
// Charts themselves are Vega-Lite's; all that is computed here is which rows they show.
"use strict";
(() => {
  const { figures, explored } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const spoken = document.getElementById("spoken");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Theme: the system's until the button is pressed.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    redrawAll();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);

  const config = (width) => {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const text = { labelColor: color("soft"), titleColor: color("ink") };
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      axis: {
        ...text, gridColor: color("grid"), domainColor: color("line"), tickColor: color("line"),
        labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500, titlePadding: 8,
        labelLimit: Math.min(260, 0.38 * width),
      },
      axisXQuantitative: { tickCount: 8, labelOverlap: true },
      legend: { ...text, labelFontSize: 12, titleFontSize: 12, orient: "top", labelLimit: 420,
        columns: Math.max(1, Math.floor(width / 190)),
      },
      text: { color: color("ink"), fontSize: 11 },
      mark: { color: color("c0") },
      range: { category: [0, 1, 2, 3, 4, 5, 6, 7, 8].map((n) => color(`c${n}`)) },
      style: {
        interval: { color: color("ink") },
        best: { color: color("ink") },
        stored: { stroke: color("ink"), color: color("ink") },
        halo: { color: color("halo"), stroke: color("halo"), strokeWidth: 4, strokeJoin: "round" },
      },
    };
  };

  // What the two figures with controls show.
  const subjects = explored.subjects || [];
  const better = (a, b) => (explored.more ? a > b : a < b);
  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  const chosen = (figure, control) =>
    figure.querySelector(`[data-control="${control}"]`)?.value ?? "";

  const offer = (select, names, selected) => {
    select.replaceChildren(
      ...names.map((name, place) => new Option(name, String(place), false, place === selected)),
    );
  };

  const fillBody = (table, rows) => {
    const numeric = all("th", table).map((head) => head.classList.contains("number"));
    table.tBodies[0].replaceChildren(
      ...rows.map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, column) => {
          const cell = line.insertCell();
          const isNumber = typeof value === "number";
          cell.textContent = isNumber ? number(value) : value;
          if (isNumber) cell.dataset.order = value;
          if (numeric[column]) cell.className = "number";
        });
        return line;
      }),
    );
    all("th", table).forEach((head) => head.removeAttribute("aria-sort"));
  };

  const SHARES = [["the fastest 30 trials", 30], ["the fastest 100 trials", 100],
    ["400 trials of all", 400]];

  const parallelData = (figure, spec) => {
    const subject = subjects[Number(chosen(figure, "study"))] || subjects[0];
    const most = SHARES[Number(chosen(figure, "share"))][1];
    let rows = [...subject.rows].sort((a, b) => (better(a[1], b[1]) ? -1 : 1));
    if (most < 400) rows = rows.slice(0, most);
    const step = Math.max(1, rows.length / 400);
    rows = rows.filter((_, place) => Math.floor(place / step) !== Math.floor((place - 1) / step));
    const place = (values, at) => (values.length > 1 ? at / (values.length - 1) : 0.5);
    // Trials of equal values would hide each other: lines are spread a little.
    const line = (row, spread) =>
      subject.parameters
        .map((parameter, at) => ({
          n: row[0], v: row[1], p: parameter.name, at: row[at + 2],
          y: place(parameter.values, row[at + 2]) + spread * (((row[0] * 0.618) % 1) - 0.5),
        }))
        .filter((point) => point.at >= 0);
    const labels = subject.parameters.flatMap((parameter) => {
      const every = Math.ceil(parameter.values.length / 14);
      return parameter.values
        .map((value, at) => ({ p: parameter.name, y: place(parameter.values, at), t: value, at }))
        .filter((label) => label.at % every === 0);
    });
    fillBody(figure.querySelector("table"), subject.parameters.flatMap((parameter, at) =>
      parameter.values.flatMap((value, position) => {
        const own = rows.filter((row) => row[at + 2] === position).map((row) => row[1]);
        if (!own.length) return [];
        const best = own.reduce((a, b) => (better(a, b) ? a : b));
        return [[parameter.name, value, own.length, best]];
      })));
    const best = subject.rows.find((row) => row[0] === subject.stored) || rows[0];
    spec.layer.forEach(({ encoding }) => {
      encoding.x.axis.labelAngle = subject.parameters.length > 8 ? -35 : 0;
    });
    // As much contrast as the page allows: neither dark on dark nor yellow on white.
    const extent = isDark() ? [0.3, 1] : [0, 0.93];
    spec.layer[0].encoding.color.scale.scheme = { name: "viridis", extent };
    const lines = [...rows].reverse().flatMap((row) => line(row, 0.04));
    return { lines, best: line(best, 0), values: labels };
  };

  const heatData = (figure, spec) => {
    const subject = subjects[Number(chosen(figure, "study"))] || subjects[0];
    const [x, y] = ["x", "y"].map((name) => Number(chosen(figure, name)));
    const [across, down] = [subject.parameters[x], subject.parameters[y]];
    if (!across || !down) return { cells: [] };
    const cells = new Map();
    for (const row of subject.rows) {
      const key = `${row[x + 2]},${row[y + 2]}`;
      const cell = cells.get(key);
      if (!cell) cells.set(key, { at: [row[x + 2], row[y + 2]], v: row[1], k: 1 });
      else {
        cell.k += 1;
        if (better(row[1], cell.v)) cell.v = row[1];
      }
    }
    const found = [...cells.values()].filter((cell) => cell.at[0] >= 0 && cell.at[1] >= 0);
    const stored = subject.rows.find((row) => row[0] === subject.stored);
    const held = stored && cells.get(`${stored[x + 2]},${stored[y + 2]}`);
    const [low, high] = [Math.min, Math.max].map((f) => f(...found.map((cell) => cell.v)));
    const rows = found.map((cell) => {
      const tone = high > low ? (cell.v - low) / (high - low) : 1;
      return {
        x: across.values[cell.at[0]], y: down.values[cell.at[1]], v: cell.v, k: cell.k,
        s: cell === held, t: found.length > 200 ? "" : number(cell.v), bright: (explored.more ? tone : 1 - tone) > 0.6,
      };
    });
    fillBody(figure.querySelector("table"), rows.map((cell) => [cell.x, cell.y, cell.v, cell.k]));
    spec.height = 30 * down.values.length;
    spec.encoding.x.title = across.name;
    spec.encoding.y.title = down.name;
    spec.encoding.x.scale = { domain: across.values };
    spec.encoding.y.scale = { domain: [...down.values].reverse() };
    return { cells: rows };
  };

  const offerParameters = (figure) => {
    const subject = subjects[Number(chosen(figure, "study"))] || subjects[0];
    const names = subject.parameters.map((parameter) => parameter.name);
    all('[data-control="x"], [data-control="y"]', figure).forEach((select, place) =>
      offer(select, names, subject.first[Math.min(place, names.length - 1)]));
  };

  all("figure").forEach((figure) => {
    const study = figure.querySelector('[data-control="study"]');
    const share = figure.querySelector('[data-control="share"]');
    if (study) offer(study, subjects.map((subject) => subject.name), 0);
    if (share) offer(share, SHARES.map(([name]) => name), 1);
    if (figure.querySelector('[data-control="x"]')) {
      offerParameters(figure);
      study.addEventListener("change", () => offerParameters(figure));
    }
    all("select", figure).forEach((select) =>
      select.addEventListener("change", () => {
        draw(figure);
        spoken.textContent = `${figure.querySelector("h3").textContent} changed`;
      }));
  });

  // Drawing: each chart when it comes near, and again when theme or choice change.
  const views = new Map();
  const order = new Map();
  const draw = async (figure) => {
    const place = figure.querySelector(".chart");
    const turn = (order.get(place) || 0) + 1;
    order.set(place, turn);
    const variant = figures[figure.id][Number(chosen(figure, "variant") || 0)];
    const spec = structuredClone(variant);
    if (figure.querySelector('[data-control="share"]')) spec.datasets = parallelData(figure, spec);
    if (figure.querySelector('[data-control="x"]')) spec.datasets = heatData(figure, spec);
    if (!window.vegaEmbed) return;
    spec.width = "container";
    spec.autosize = { type: "fit-x", contains: "padding" };
    spec.description = place.dataset.title;
    views.get(place)?.finalize();
    const drawn = await vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", config: config(place.clientWidth),
      tooltip: { theme: isDark() ? "dark" : "light" },
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: figure.id,
    });
    if (order.get(place) !== turn) return drawn.finalize();
    views.set(place, drawn);
    const menu = place.querySelector("summary");
    menu?.setAttribute("aria-label", `Save the chart: ${place.dataset.title}`);
    place.dataset.drawn = turn;
  };
  const redrawAll = () => views.forEach((_, place) => draw(place.closest("figure")));
  const near = new IntersectionObserver(
    (entries) => entries.forEach((entry) => {
      if (!entry.isIntersecting) return;
      near.unobserve(entry.target);
      draw(entry.target.closest("figure"));
    }),
    { rootMargin: "600px" },
  );
  all(".chart").forEach((place) => near.observe(place));
  addEventListener("beforeprint", () =>
    all(".chart").filter((place) => !views.has(place)).forEach((place) =>
      draw(place.closest("figure"))));

  // Tables: a click on a column's name sorts by it; what is not known comes last either way.
  const key = (row, column) => {
    const cell = row.cells[column];
    const isNumber = cell.classList.contains("number");
    const value = "order" in cell.dataset ? Number(cell.dataset.order) : NaN;
    return isNumber || !Number.isNaN(value) ? value : cell.textContent;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
  document.addEventListener("click", (event) => {
    const name = event.target.closest("button.sort");
    if (!name) return;
    const head = name.parentElement;
    const table = head.closest("table");
    const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = direction === "ascending" ? 1 : -1;
    const keyed = [...table.tBodies[0].rows].map((row) => [key(row, head.cellIndex), row]);
    keyed.sort(([a], [b]) => {
      const unknown = Number(Number.isNaN(a)) - Number(Number.isNaN(b));
      return unknown || sign * compare(a, b);
    });
    table.tBodies[0].append(...keyed.map(([, row]) => row));
    all("th", table).forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    spoken.textContent = `${table.caption.textContent}: sorted by ${name.textContent}, ${direction}`;
  });

  // Navigation: which section is being read.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const sections = all("main > section");
  let waiting = false;
  const mark = () => {
    waiting = false;
    const passed = sections.filter((each) => each.getBoundingClientRect().top < innerHeight * 0.35);
    const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 4;
    const current = atEnd ? sections[sections.length - 1] : passed[passed.length - 1] || sections[0];
    links.forEach((link, id) => {
      if (id !== current.id) return link.removeAttribute("aria-current");
      if (link.hasAttribute("aria-current")) return;
      link.setAttribute("aria-current", "true");
      const bar = link.closest("ul");
      bar.scrollTo({ left: link.offsetLeft - bar.clientWidth / 3 });
    });
  };
  addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(mark);
    waiting = true;
  }, { passive: true });
  mark();
  button.setAttribute("aria-pressed", String(isDark()));
})();
