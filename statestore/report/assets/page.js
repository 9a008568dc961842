"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
    return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
  };
  const ms = (value) => `${value && value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
  const count = (value) => Number(value).toLocaleString("en-US");

  const axes = (names, form) => ({
    animation: false,
    backgroundColor: "transparent",
    textStyle: { color: color("ink") },
    grid: { left: 64, right: 16, top: 32, bottom: 28 },
    legend: { top: 0, textStyle: { color: color("muted") } },
    tooltip: { trigger: "axis", valueFormatter: (value) => (value == null ? "–" : form(value)) },
    xAxis: { type: "category", data: names, axisLabel: { color: color("muted") } },
    yAxis: {
      type: "value",
      axisLabel: { color: color("muted"), formatter: form },
      splitLine: { lineStyle: { color: color("line") } },
    },
  });

  const PHASES = [
    ["sort, write", (of) => of.write_ms],
    ["check, seal", (of) => of.checksum_ms],
    ["publish", (of) => of.publish_ms - of.sync_ms],
    ["sync", (of) => of.sync_ms],
  ];
  const stacked = (names, commits) => ({
    ...axes(names, ms),
    series: PHASES.map(([name, value]) => ({
      name, type: "bar", stack: "commit", data: commits.map((of) => (of && of.write_ms != null ? value(of) : null)),
    })),
  });

  const MOST_LABELS = 16;
  const MOST_BARS = 400;
  const MOST_LINES = 200;
  const MOST_SHAPES = 2000;

  // Many state partitions are shown by the one of each few that has the most.
  const folded = (items, most, weight) => {
    const width = Math.ceil(items.length / most);
    const groups = [];
    for (let at = 0; at < items.length; at += width) {
      const few = items.slice(at, at + width);
      const top = few.reduce((one, other) => (weight(other) > weight(one) ? other : one));
      const [first, last] = [few[0], few[few.length - 1]].map((of) => of.partition);
      groups.push([width > 1 ? `${first}–${last}` : String(first), top]);
    }
    return groups;
  };
  const CHARTS = {
    sizes: (facts) => {
      const versions = [...facts.versions].reverse();
      const snapshots = versions.filter((of) => of.num_snapshots)
        .map((of) => ({ xAxis: String(of.version), yAxis: of.full_bytes, name: "snapshot" }));
      return {
        ...axes(versions.map((of) => String(of.version)), bytes),
        series: [
          { name: "added", type: "bar", data: versions.map((of) => (of.num_stores ? of.incremental_bytes : null)) },
          {
            name: "a restore reads", type: "line", showSymbol: versions.length < 3,
            data: versions.map((of) => (of.num_stores ? of.full_bytes : null)),
            markPoint: {
              symbol: "diamond", symbolSize: 9, label: { show: false },
              data: snapshots.map((at) => ({ name: at.name, coord: [at.xAxis, at.yAxis] })),
            },
          },
        ],
      };
    },
    commits: (facts) => {
      const versions = [...facts.versions].reverse();
      return stacked(versions.map((of) => String(of.version)), versions.map((of) => of.commit));
    },
    rows: (facts, store) => {
      const bars = folded(store.partitions, MOST_BARS, (of) => of.num_rows ?? 0);
      return {
        ...axes(bars.map(([name]) => name), count),
        series: [{ name: "rows", type: "bar", data: bars.map(([, of]) => of.num_rows) }],
      };
    },
    phases: (facts, store) => {
      const bars = folded(store.partitions, MOST_BARS, (of) => of.commit_ms ?? 0);
      return stacked(bars.map(([name]) => name), bars.map(([, of]) => of));
    },
    groups: (facts, store) => {
      const lines = folded(
        store.key_groups.map((rows, at) => ({ partition: store.partitions[at].partition, rows })),
        MOST_LINES, (of) => Math.max(...of.rows),
      );
      const cells = lines.flatMap(([, of], at) => of.rows.map((value, group) => [group, at, value]));
      const most = cells.reduce((value, cell) => Math.max(value, cell[2]), 1);
      return {
        ...axes(store.key_groups[0].map((_, group) => String(group)), count),
        legend: { show: false },
        grid: { left: 90, right: 90, top: 8, bottom: 28 },
        tooltip: {
          formatter: (of) => `state partition ${lines[of.value[1]][0]}, `
            + `class ${of.value[0]}: ${count(of.value[2])} rows`,
        },
        yAxis: {
          type: "category", data: lines.map(([name]) => name),
          axisLabel: { color: color("muted"), interval: Math.ceil(lines.length / MOST_LABELS) - 1 },
        },
        visualMap: {
          min: 0, max: most, calculable: false, text: [count(most), "0"], right: 0, top: "middle", itemHeight: 120,
          inRange: { color: [color("raised"), color("accent")] }, textStyle: { color: color("muted") },
        },
        series: [{ type: "heatmap", data: cells }],
      };
    },
  };

  // ---- charts: of a part of the page that stays, a chart is drawn over, not anew

  const mark = (query) => `${query.newest_version} ${query.operation} ${query.is_running}`;
  let shownMark = null;
  const draw = (anew) => {
    const source = document.getElementById("facts-data");
    if (!source) return;
    const facts = JSON.parse(source.textContent);
    shownMark = mark(facts.query);
    document.querySelectorAll("[data-chart]").forEach((element) => {
      const option = CHARTS[element.dataset.chart](facts, facts.stores[element.dataset.of]);
      option.series.forEach((of) => { of.progressive = 0; }); // else a large one is drawn in part
      const points = option.series.flatMap((of) => of.data).filter((at) => at != null).length;
      if (anew) echarts.getInstanceByDom(element)?.dispose();
      const chart = echarts.getInstanceByDom(element) ?? echarts.init(
        element, dark.matches ? "dark" : null, { renderer: points > MOST_SHAPES ? "canvas" : "svg" },
      );
      chart.setOption(option, { notMerge: true });
      element.dataset.points = points;
    });
  };
  const charts = () => [...document.querySelectorAll("[data-chart]")].map((of) => echarts.getInstanceByDom(of));
  dark.addEventListener("change", () => draw(true));
  window.addEventListener("resize", () => charts().forEach((chart) => chart?.resize()));

  // ---- the table of all checkpoints: sorted and filtered here

  const index = document.getElementById("index");
  const order = { column: -1, down: false };
  const arrange = () => {
    if (!index) return;
    const body = index.tBodies[0];
    const wanted = document.getElementById("filter").value.toLowerCase();
    const rows = [...body.rows];
    const value = (row) => {
      const cell = row.cells[order.column];
      if (!cell) return "";
      if (cell.dataset.value === undefined) return cell.textContent.trim().toLowerCase();
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    if (order.column >= 0) {
      const sign = order.down ? -1 : 1;
      rows.sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === null || b === null || a === "" || b === "") return (a === null || a === "") - (b === null || b === "");
        return sign * (a < b ? -1 : a > b ? 1 : 0);
      });
      if (rows.some((row, at) => row !== body.rows[at])) body.append(...rows);
    }
    let shown = 0;
    rows.forEach((row) => {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    });
    document.getElementById("shown").textContent = `${shown} of ${rows.length}`;
    [...index.tHead.rows[0].cells].forEach((cell, at) => {
      cell.setAttribute("aria-sort", at !== order.column ? "none" : order.down ? "descending" : "ascending");
    });
  };
  if (index) {
    [...index.tHead.rows[0].cells].forEach((cell, at) => cell.querySelector("button").addEventListener("click", () => {
      order.down = order.column === at && !order.down;
      order.column = at;
      arrange();
    }));
    document.getElementById("filter").addEventListener("input", arrange);
    arrange();
  }

  // ---- what is new: asked for, and put in the place of what differs, unless somebody is at it

  const partsOf = (root) => new Map([...root.querySelectorAll("[data-part]")].map((of) => [of.dataset.part, of]));
  const facts = document.getElementById("facts");
  const came = new Map(facts ? [...partsOf(facts)].map(([name, of]) => [name, of.outerHTML]) : []);
  draw(false);

  const isBusy = (element) => {
    const [selection, at] = [getSelection(), document.activeElement];
    return (element.contains(at) && at.matches("input, textarea, select"))
      || (!selection.isCollapsed && selection.rangeCount > 0 && selection.getRangeAt(0).intersectsNode(element));
  };
  const renew = (html) => {
    const parse = (text) => new DOMParser().parseFromString(text, "text/html");
    if (index) {
      const body = index.tBodies[0];
      if (isBusy(body)) return;
      body.replaceChildren(...parse(`<table>${html}</table>`).querySelectorAll("tr"));
      arrange();
      return;
    }
    const found = parse(html);
    const [shown, parts] = [partsOf(facts), partsOf(found)];
    if ([...shown.keys()].join() !== [...parts.keys()].join()) {
      if (isBusy(facts)) return;
      const open = [...facts.querySelectorAll("details")].map((of) => of.open);
      charts().forEach((chart) => chart?.dispose());
      came.clear();
      parts.forEach((of, name) => came.set(name, of.outerHTML));
      facts.replaceChildren(...found.body.childNodes);
      facts.querySelectorAll("details").forEach((of, at) => { of.open = Boolean(open[at]); });
    } else {
      let isPassed = false;
      parts.forEach((part, name) => {
        const html = part.outerHTML;
        if (came.get(name) === html) return;
        if (isBusy(shown.get(name))) { isPassed = true; return; }
        shown.get(name).replaceWith(part);
        came.set(name, html);
      });
      document.getElementById("facts-data").textContent = found.getElementById("facts-data").textContent;
      draw(false);
      if (isPassed) shownMark = null; // to be put in when nobody is at it any more
      return;
    }
    draw(false);
  };

  const server = JSON.parse(document.getElementById("server")?.textContent ?? "null");
  const call = (what, body) => fetch(`${server.address.replace(/\/$/, "")}/${what}`, {
    method: body === undefined ? "GET" : "POST",
    headers: { "X-Statestore-Token": server.token, "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });

  // What few files tell comes every two seconds; the rest when there is another version.
  const LIVE_MS = 2000;
  const tell = (live) => Object.entries(live.told).forEach(([name, text]) => {
    const element = document.querySelector(`[data-live="${name}"]`);
    if (element && element.textContent !== text && !isBusy(element)) element.textContent = text;
  });
  const problems = { live: "", part: "" };
  const stand = (what, problem) => {
    problems[what] = problem;
    const still = document.getElementById("still");
    const why = problems.live || problems.part;
    still.hidden = !why;
    if (still.lastElementChild.textContent !== why) still.lastElementChild.textContent = why;
  };
  const reason = (text) => {
    try { return JSON.parse(text).problem; } catch { return text; }
  };
  const look = async (what, show) => {
    let [reply, problem] = [null, ""];
    try {
      reply = await call(what);
      const text = await reply.text();
      if (reply.ok) show(text);
      else problem = reason(text);
    } catch (error) {
      problem = reply ? String(error) : `the server does not answer: ${error}`;
    }
    stand(what, problem);
  };
  let told = null;
  const put = (html) => {
    const at = document.activeElement ?? document.body;
    const alike = () => [...document.querySelectorAll(at.localName)].filter((of) => of.outerHTML === at.outerHTML);
    const place = at === document.body ? 0 : alike().indexOf(at);
    renew(html);
    if (told) tell(told);
    // Focus stays on a link or a button that is another one now.
    if (!at.isConnected) alike()[place]?.focus({ preventScroll: true });
  };
  let isLooking = false;
  const lookAtAll = async () => {
    if (isLooking) return;
    isLooking = true;
    await look("part", facts || index ? put : () => location.reload());
    isLooking = false;
  };
  const follow = async () => {
    if (facts) {
      await look("live", (text) => {
        told = JSON.parse(text);
        tell(told);
        // It may read all state: what is told goes on meanwhile.
        if (mark(told.query) !== shownMark) lookAtAll();
        else stand("part", "");
      });
    } else {
      await lookAtAll();
    }
    setTimeout(follow, LIVE_MS);
  };
  if (server) setTimeout(follow, LIVE_MS);

  // ---- what is asked: SQL, keys, plans. Text of state is put in as text, never as HTML.

  const made = (name, text, ...inside) => {
    const element = document.createElement(name);
    if (text !== null) element.textContent = text;
    element.append(...inside);
    return element;
  };
  const tableOf = (columns, rows) => {
    const line = (kind, cells) => made("tr", null, ...cells.map((cell) => made(kind, cell === null ? "–" : cell)));
    const table = made("table", null, made("thead", null, line("th", columns)),
      made("tbody", null, ...rows.map((row) => line("td", row))));
    const scroll = made("div", null, table);
    scroll.className = "scroll";
    return scroll;
  };
  const say = (text, kind) => {
    const line = made("p", text);
    line.className = kind;
    return line;
  };
  const ANSWERS = {
    sql: (found) => [tableOf(found.columns, found.rows), say(found.about, "muted")],
    key: (found) => [tableOf(found.columns, found.rows), say(found.about, "muted")],
    plan: (found, place) => {
      const shown = [made("pre", found.plan), say("The command:", "muted"), made("pre", found.command)];
      if (found.confirmation) {
        const button = made("button", `Do it: ${found.operation}`);
        button.className = "change";
        button.addEventListener("click", async () => {
          if (!confirm(`${found.operation} of ${found.uri}\n\n${found.plan}\n\nDo it?`)) return;
          button.disabled = true;
          button.textContent = "under way …";
          await ask("do", { confirmation: found.confirmation }, place);
        });
        shown.push(button);
      }
      return shown;
    },
    do: (found) => [say("Done.", "muted"), made("pre", found.done)],
  };
  const ask = async (what, body, place) => {
    try {
      const reply = await call(what, body);
      const found = await reply.json().catch(() => ({ problem: `The server has failed: ${reply.status}` }));
      place.replaceChildren(...(reply.ok ? ANSWERS[what](found, place) : [say(found.problem, "problem")]));
    } catch (error) {
      place.replaceChildren(say(`The server does not answer: ${error}`, "problem"));
    }
  };
  document.querySelectorAll("form[data-ask]").forEach((form) => {
    const place = form.parentElement.querySelector(".answer");
    const fit = () => form.querySelectorAll("[data-for]").forEach((of) => {
      of.hidden = !of.dataset.for.split(" ").includes(form.elements.operation.value);
    });
    if (form.elements.operation) {
      form.elements.operation.addEventListener("change", () => { fit(); place.replaceChildren(); });
      fit();
    }
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const button = form.querySelector("button");
      button.disabled = true;
      place.replaceChildren(say("…", "muted"));
      await ask(form.dataset.ask, Object.fromEntries(new FormData(form)), place);
      button.disabled = false;
    });
  });
  document.getElementById("ask")?.addEventListener("toggle", async () => {
    const reply = await call("tables");
    if (reply.ok) document.getElementById("tables").textContent = (await reply.json()).tables.join(", ") || "no table yet";
  }, { once: true });
})();
