// Charts over one range of time that one chooses.
import { Chart } from "./chart.js";
import { field } from "./dialog.js";
import { h } from "./dom.js";

const RANGES = [
  ["3600000", "the last hour"],
  ["900000", "the last 15 minutes"],
  ["300000", "the last 5 minutes"],
];

export class ChartSet {
  constructor(note = null) {
    this.charts = new Map();
    this.times = [];
    this.plans = [];
    this.range = field({ name: "range", label: "Range", options: RANGES, onchange: () => this.draw() });
    this.box = h("div", { class: "charts" });
    this.others = h("div", { class: "charts" });
    this.more = h("details", { class: "more", "data-fold": "charts", hidden: true }, h("summary", null, "More charts"), this.others);
    this.nodes = [h("div", { class: "filters plain range" }, this.range, note && h("span", { class: "note" }, note)), this.box, this.more];
  }

  // plans: [[title, unit, [{label, values}], whether it is shown at once], ...]; a value for each of `times`.
  update(times, plans) {
    this.times = times;
    this.plans = plans;
    this.draw();
  }

  draw() {
    const begin = this.times.at(-1) - Number(this.range.querySelector("select").value);
    const first = Math.max(
      this.times.findIndex((at) => at >= begin),
      0,
    );
    for (const [title, unit, series, isFirst] of this.plans) {
      if (!this.charts.has(title)) {
        this.charts.set(title, new Chart(title, unit));
        (isFirst ? this.box : this.others).append(this.charts.get(title).element);
      }
      const shown = series.map(({ label, values }) => ({ label, values: values.slice(first) }));
      this.charts.get(title).update(this.times.slice(first), shown);
    }
    this.more.hidden = !this.others.firstChild;
  }
}
