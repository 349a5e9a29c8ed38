// One job.
import { h } from "./dom.js";
import { link } from "./links.js";
import { aboutText } from "./page_jobs.js";
import { panel, section } from "./view.js";
import { followJob, jobFacts } from "./work.js";

export async function show(view) {
  const id = view.route.path[1];
  view.begin("Job", { lead: [link(["jobs"], "Jobs"), ` / ${id}`] });
  const job = await view.call("JobService/GetJob", { id });
  const details = section(view, "Request", async () => [
    h("p", null, aboutText(job)),
    jobFacts(await view.call("JobService/GetJob", { id })),
  ]);
  view.add(
    panel(
      "Progress",
      followJob(view, job, () => details.refresh()),
    ),
    details,
  );
}
