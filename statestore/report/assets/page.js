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
  const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
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
    rows: (facts, store) => ({
      ...axes(store.partitions.map((of) => String(of.partition)), count),
      series: [{ name: "rows", type: "bar", data: store.partitions.map((of) => of.num_rows) }],
    }),
    phases: (facts, store) => stacked(store.partitions.map((of) => String(of.partition)), store.partitions),
    groups: (facts, store) => {
      const cells = store.key_groups.flatMap((rows, at) => rows.map((value, group) => [group, at, value]));
      const most = Math.max(1, ...cells.map((cell) => cell[2]));
      const base = axes(store.key_groups[0].map((_, group) => String(group)), count);
      return {
        ...base,
        legend: { show: false },
        grid: { left: 64, right: 90, top: 8, bottom: 28 },
        tooltip: {
          formatter: (of) => `state partition ${store.partitions[of.value[1]].partition}, `
            + `class ${of.value[0]}: ${count(of.value[2])} rows`,
        },
        yAxis: {
          type: "category", data: store.partitions.map((of) => String(of.partition)),
          axisLabel: { color: color("muted"), interval: Math.ceil(store.partitions.length / MOST_LABELS) - 1 },
        },
        visualMap: {
          min: 0, max: most, calculable: false, text: [count(most), "0"], right: 0, top: "middle", itemHeight: 120,
          inRange: { color: [color("raised"), color("accent")] }, textStyle: { color: color("muted") },
        },
        series: [{ type: "heatmap", data: cells }],
      };
    },
  };

  let drawn = [];
  const draw = () => {
    const source = document.getElementById("facts");
    drawn.forEach((chart) => chart.dispose());
    drawn = [];
    if (!source) return;
    const facts = JSON.parse(source.textContent);
    document.querySelectorAll("[data-chart]").forEach((element) => {
      const option = CHARTS[element.dataset.chart](facts, facts.stores[element.dataset.of]);
      const chart = echarts.init(element, dark.matches ? "dark" : null, { renderer: "svg" });
      chart.setOption(option);
      element.dataset.points = option.series.flatMap((of) => of.data).filter((at) => at != null).length;
      drawn.push(chart);
    });
  };
  draw();
  dark.addEventListener("change", draw);
  window.addEventListener("resize", () => drawn.forEach((chart) => chart.resize()));

  const seconds = Number(document.body.dataset.refresh);
  const refresh = async () => {
    try {
      const found = await fetch(location.href);
      if (found.ok) {
        const page = new DOMParser().parseFromString(await found.text(), "text/html");
        const open = [...document.querySelectorAll("details")].map((of) => of.open);
        document.querySelector("main").replaceWith(page.querySelector("main"));
        document.querySelectorAll("details").forEach((of, at) => { of.open = Boolean(open[at]); });
        draw();
      }
    } catch (error) {
      // The server may be gone: what is shown stays.
    }
    setTimeout(refresh, 1000 * seconds);
  };
  if (seconds) setTimeout(refresh, 1000 * seconds);
})();
