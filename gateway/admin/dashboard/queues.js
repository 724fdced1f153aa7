// What waits: by class and pool, and how the tenants share.

import { get } from "./api.js";
import { h, meter, setHidden, setText, syncList, table, textRow } from "./dom.js";
import { amount, count, percent, plural, seconds } from "./format.js";
import { whileShown } from "./pace.js";

const TENANTS_MS = 2000;
const MAX_TENANTS = 200;

/** One entry for each class and pool, summed over tenants, the longest wait first. */
function byClassAndPool(queues) {
  const found = new Map();
  for (const queue of queues) {
    const key = `${queue.class}\n${queue.pool}`;
    const sum = found.get(key) ?? { key, class: queue.class, pool: queue.pool, queued: 0, tenants: 0, oldest: 0 };
    sum.queued += queue.queued;
    sum.tenants += 1;
    sum.oldest = Math.max(sum.oldest, queue.oldest_wait_s);
    found.set(key, sum);
  }
  return [...found.values()].sort((one, other) => other.oldest - one.oldest);
}

const servedOf = (tenant) => Object.values(tenant.served_tokens).reduce((sum, each) => sum + each, 0);
const ofLimit = (value, limit) => (limit === null ? count(value) : `${count(value)} / ${count(limit)}`);

export function queuesView(app) {
  const sums = h("dl", { class: "figures" });
  const waiting = table("Requests waiting, by class and pool", "Class", "Pool", "#Waiting", "#Oldest", "#Tenants");
  const empty = h("p", { class: "hint", text: "Nobody waits." });
  const tenants = table("Tenants", "Tenant", "#Running", "#Waiting", "#Weight", "Highest class", "Tokens served");
  const more = h("p", { class: "hint", hidden: true });
  const element = h(
    "div",
    { class: "columns" },
    h("section", { class: "card", "aria-label": "Waiting" }, h("h2", { text: "Waiting" }), sums, waiting.element, empty),
    h("section", { class: "card", "aria-label": "Tenants" }, h("h2", { text: "Tenants" }), tenants.element, more),
  );

  function makeTenant() {
    const cells = ["", "number", "number", "number", ""].map((kind) => h("td", { class: kind || null }));
    const share = meter("Share");
    return {
      element: h("tr", {}, ...cells, h("td", { class: "wide-cell" }, share.element)),
      update({ tenant, served, all }) {
        setText(cells[0], tenant.in_policy ? tenant.name : `${tenant.name} (not in the policy)`);
        setText(cells[1], ofLimit(tenant.in_flight, tenant.max_in_flight));
        setText(cells[2], ofLimit(tenant.queued, tenant.max_queued));
        setText(cells[3], String(tenant.weight));
        setText(cells[4], tenant.max_class);
        share.update(served, all, all ? `${percent(served / all)}, ${amount(served)} tokens` : "nothing yet", "fine");
      },
    };
  }

  async function lookAtTenants() {
    const found = (await get("tenants")).tenants.map((tenant) => ({ tenant, served: servedOf(tenant) }));
    const all = found.reduce((sum, each) => sum + each.served, 0);
    const busy = ({ tenant, served }) => [tenant.in_flight + tenant.queued > 0, served];
    found.sort((one, other) => {
      const [a, b] = [busy(one), busy(other)];
      return Number(b[0]) - Number(a[0]) || b[1] - a[1];
    });
    const drawn = found.slice(0, MAX_TENANTS).map((each) => ({ ...each, all }));
    syncList(tenants.body, drawn, ({ tenant }) => tenant.name, makeTenant);
    setHidden(more, found.length <= MAX_TENANTS);
    setText(more, `and ${plural(found.length - MAX_TENANTS, "more tenant")} with less`);
  }

  const pace = whileShown(app, TENANTS_MS, "The tenants", lookAtTenants);
  return {
    element,
    show: pace.start,
    hide: pace.stop,
    update(fleet) {
      const queue = fleet.queue;
      const figures = [
        ["Waiting", count(queue.queued)],
        ["Oldest", queue.queued ? seconds(queue.oldest_wait_s) : "–"],
        ["Running", count(fleet.in_flight)],
        ["Ends", `${queue.drain_per_s.toFixed(1)} / s`],
      ];
      syncList(sums, figures, ([name]) => name, ([name]) => {
        const value = h("dd");
        return { element: h("div", {}, h("dt", { text: name }), value), update: ([, text]) => setText(value, text) };
      });
      const rows = byClassAndPool(fleet.queues);
      const cells = (row) => [row.class, row.pool, { number: count(row.queued) }, { number: seconds(row.oldest) }, { number: count(row.tenants) }];
      syncList(waiting.body, rows, (row) => row.key, textRow(cells));
      setHidden(waiting.element, rows.length === 0);
      setHidden(empty, rows.length > 0);
    },
  };
}
