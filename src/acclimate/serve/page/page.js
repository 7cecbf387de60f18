// The page: what a visitor does becomes calls of /v1, and answers become text and pictures.
"use strict";

const AT_ONCE = 32; // images of a call
const SHOWN = 24; // predictions before "Show more"
const state = { site: null, models: [], classes: {}, files: new Map(), rows: [], shown: SHOWN };

// Calls

async function call(method, path, { json, form, key, raw } = {}) {
  const headers = {}, token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  const answer = await fetch(path, { method, headers, body: form ?? (json === undefined ? undefined : JSON.stringify(json)) });
  if (answer.status === 401) {
    const given = await ask("This server asks for a token", "Token", "password");
    if (!given) throw new Error("a token is needed");
    sessionStorage.setItem("token", given);
    return call(method, path, { json, form, key, raw });
  }
  if (answer.status === 429) { // the queue is full for a moment
    await new Promise((resume) => setTimeout(resume, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
    return call(method, path, { json, form, key, raw });
  }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => null);
    throw new Error(problem?.error?.message ?? `the server answered ${answer.status}`);
  }
  if (raw) return answer.blob();
  return answer.status === 204 ? null : answer.json();
}

const here = (rest = "") => `v1/sites/${encodeURIComponent(state.site)}${rest}`;

function say(text, problem = false) {
  $("message").textContent = text;
  $("message").classList.toggle("problem", problem);
}

// Runs what a visitor asked for; what goes wrong is said, and the button works again.
function does(action) {
  return async (event) => {
    event?.preventDefault();
    const button = event?.submitter ?? event?.currentTarget;
    if (button instanceof HTMLButtonElement) button.disabled = true;
    try {
      await action(event);
    } catch (error) {
      say(error.message, true);
    } finally {
      if (button instanceof HTMLButtonElement) button.disabled = false;
    }
  };
}

function ask(title, label, type = "text") {
  const dialog = $("ask"), answer = $("answer");
  $("ask-title").textContent = title;
  $("ask-label").textContent = label;
  Object.assign(answer, { type, value: "" });
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue && answer.value), { once: true }));
}

// All sites

async function showSites() {
  const known = await call("GET", "v1/sites"), body = $("sites").tBodies[0];
  state.models = known.models;
  $("model").replaceChildren(...known.models.map((name) => element("option", name)));
  $("model").hidden = $("model").previousElementSibling.hidden = known.models.length < 2;
  body.replaceChildren(...known.sites.map((site) => {
    const row = element("tr"), open = element("button", site.name, { type: "button" });
    if (site.name === state.site) row.setAttribute("aria-current", "true");
    open.addEventListener("click", does(() => openSite(site.name)));
    const expected = site.expected_accuracy === null ? "–" : percent(site.expected_accuracy);
    row.append(element("td"), element("td", site.images), element("td", expected));
    row.cells[0].append(open);
    return row;
  }));
  if (!known.sites.length) body.append(element("tr"));
  if (!known.sites.length) body.rows[0].append(element("td", "There is no site yet.", { colspan: 3 }));
  await showMap();
}

async function showMap() {
  const map = await call("GET", "v1/map");
  const shown = Object.values(map).find((model) => state.site in model.sites) ?? map[state.models[0]];
  $("map").hidden = !shown;
  if (shown) drawMap($("map").querySelector("svg"), shown, state.site);
}

// One site

async function openSite(name) {
  if (name !== state.site) {
    Object.assign(state, { site: name, files: new Map(), rows: [], shown: SHOWN });
    forgetThumbnails();
    $("results").hidden = $("labels").hidden = true;
  }
  await showSite(await call("GET", here()));
  await showSites();
  await showDrift();
  $("site-title").focus();
}

async function showSite(site) {
  $("site").hidden = false;
  $("site-title").textContent = site.name;
  const facts = [["Images", site.images, site.labelled ? `${site.labelled} with a label` : "none with a label"]];
  facts.push(["Adapted by", site.method === "none" ? "nothing: the plain model" : site.method, `model ${site.model}`]);
  if (site.expected_accuracy !== null) {
    facts.push(["Expected accuracy", percent(site.expected_accuracy), `at least ${percent(site.floor)} at nine of ten sites`]);
  }
  if (site.trust?.nearest_domain) facts.push(["Most like", site.trust.nearest_domain, "of the training sites"]);
  $("facts").replaceChildren(...facts.map(([name, value, small]) => {
    const fact = element("div"), given = element("dd", value);
    given.append(element("small", small));
    fact.append(element("dt", name), given);
    return fact;
  }));
  const notes = [...site.notes, ...(site.trust?.warnings ?? [])];
  if (site.moving_to) notes.push(`moves to model ${site.moving_to} as new images arrive`);
  $("notes").replaceChildren(...notes.map((note) => element("li", note)));
  showMix(site);
  $("history").replaceChildren(...[...site.history].reverse().map((entry) => element("li", inWords(entry))));
}

function inWords({ at, what, pictures, labels, about }) {
  const counts = [pictures && `${pictures} images`, labels && `${labels} labels`].filter(Boolean).join(", ");
  return [new Date(at).toLocaleString(), what, counts, about].filter(Boolean).join(" · ");
}

function showMix(site) {
  const mix = Object.entries(site.label_prior ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 30);
  $("mix").hidden = !mix.length;
  $("no-mix").textContent = mix.length ? "" : "They are estimated where the method corrects for them; here it does not.";
  $("mix").tBodies[0].replaceChildren(...mix.map(([name, share]) => {
    const row = element("tr"), bar = element("meter", undefined, { min: 0, max: mix[0][1], value: share, "aria-label": name });
    row.append(element("td", name), element("td", percent(share)), element("td"));
    row.cells[2].append(bar);
    return row;
  }));
}

async function showDrift() {
  $("reasons").replaceChildren();
  $("evidence").hidden = true;
  try {
    const drift = await call("GET", here("/drift"));
    $("outcome").textContent = drift.words ?? drift.outcome;
    $("reasons").replaceChildren(...(drift.reasons ?? []).map((reason) => element("li", reason)));
    const threshold = drift.looks?.[0]?.threshold, seen = drift.history ?? [];
    $("evidence").hidden = !(threshold && seen.length);
    if (!$("evidence").hidden) drawEvidence($("evidence").querySelector("svg"), seen, threshold);
  } catch (error) {
    $("outcome").textContent = error.message;
  }
}

// Images

async function addFiles(list) {
  const files = [...list].filter((file) => !file.name.startsWith("."));
  if (!files.length) throw new Error("there is no image in what you chose");
  const bar = $("progress"), unreadable = [];
  let added = 0, last = null;
  Object.assign(bar, { max: 3 * files.length, value: 0, hidden: false });
  try {
    await inParts(files, async (some) => {
      const form = new FormData();
      for (const file of some) form.append("images", file);
      last = await call("POST", here("/images"), { form });
      added += last.added;
      last.pictures.forEach((id, place) => id && state.files.set(id, some[place]));
      unreadable.push(...last.unreadable.map((one) => `${some[one.index].name}: ${one.reason}`));
    });
    await showSite(await call("GET", here()));
    state.rows = [];
    await inParts(files, async (some) => {
      const [after, before] = await Promise.all([predicted(some, false), predicted(some, true)]);
      some.forEach((file, place) => state.rows.push({ file, before: before[place], after: after[place] }));
      bar.value += some.length;
    });
  } finally {
    bar.hidden = true;
  }
  state.rows.sort((a, b) => (a.after.probability ?? 2) - (b.after.probability ?? 2));
  state.shown = SHOWN;
  showPredictions();
  await showSites();
  await showDrift();
  const left = unreadable.length ? ` Not readable: ${unreadable.slice(0, 5).join("; ")}${unreadable.length > 5 ? "; …" : ""}.` : "";
  say(`${added} new images of ${files.length}.${left}`, unreadable.length > 0);

  async function inParts(all, act) {
    for (let start = 0; start < all.length; start += AT_ONCE) {
      const some = all.slice(start, start + AT_ONCE);
      await act(some);
      bar.value += some.length;
      say(`${bar.value < bar.max / 3 ? "Adapting" : "Predicting"}: ${Math.min(start + AT_ONCE, all.length)} of ${all.length} images`);
    }
  }
}

async function predicted(files, plain) {
  const form = new FormData();
  for (const file of files) form.append("images", file);
  return (await call("POST", here(`/predict?plain=${plain}`), { form })).predictions;
}

function showPredictions() {
  const readable = state.rows.filter((row) => row.after.probability !== null);
  const changed = readable.filter((row) => row.before.label !== row.after.label);
  const rows = $("changed").checked ? changed : readable;
  $("results").hidden = !state.rows.length;
  $("changes").textContent = `Adaptation changed ${changed.length} of ${readable.length} predictions.`;
  $("predictions").replaceChildren(...rows.slice(0, state.shown).map((row) => {
    const lines = [element("strong", row.after.label), ` ${percent(row.after.probability)}`];
    if (row.before.label !== row.after.label) lines.unshift(element("del", row.before.label), " → ");
    return card(row.file, "", ...lines);
  }));
  $("more").hidden = rows.length <= state.shown;
}

// Labels

async function suggest() {
  const { pictures } = await call("GET", here("/suggest?count=20")), list = $("suggestions");
  if (!pictures.length) throw new Error("there is no image without a label; add images first");
  const model = (await call("GET", here())).model;
  state.classes[model] ??= (await call("GET", `v2/models/${encodeURIComponent(model)}`)).parameters.classes;
  list.replaceChildren(...pictures.map(({ picture, guess }) => {
    const file = state.files.get(picture), made = card(file, "not in this browser", `taken for ${guess}`);
    const select = element("select", undefined, { name: picture, "aria-label": `Label of ${file?.name ?? picture}` });
    select.append(element("option", "no label", { value: "" }), ...state.classes[model].map((name) => element("option", name)));
    made.append(select);
    return made;
  }));
  $("labels").hidden = false;
  list.querySelector("select").focus();
}

async function useLabels() {
  const labels = Object.fromEntries([...new FormData($("labels"))].filter(([, label]) => label));
  if (!Object.keys(labels).length) throw new Error("choose a label for one image or more");
  const before = await call("GET", here());
  const { site } = await call("POST", here("/labels"), { json: { labels } });
  $("labels").hidden = true;
  await showSite(site);
  await showSites();
  const [was, now] = [before, site].map((one) => one.expected_accuracy);
  const gained = was !== null && now !== null ? ` Expected accuracy: ${percent(was)} before, ${percent(now)} now.` : "";
  say(`${Object.keys(labels).length} labels are used; the site is adapted by ${site.method}.${gained}`);
}

// What buttons do

async function create() {
  const name = $("name").value, model = $("model").hidden ? null : $("model").value;
  await call("PUT", `v1/sites/${encodeURIComponent(name)}`, { json: { model } });
  $("create").reset();
  await openSite(name);
  say(`Site ${name} is there. Give it images.`);
}

async function download() {
  say("The file is being made and checked.");
  const link = element("a", "", { download: `${state.site}.onnx` });
  link.href = URL.createObjectURL(await call("GET", here("/export"), { raw: true }));
  link.click();
  URL.revokeObjectURL(link.href);
  say(`${state.site}.onnx: needs neither this server nor PyTorch.`);
}

async function remove() {
  const name = await ask(`Delete ${state.site}?`, `All that is stored of it will be gone. Type its name to go on: ${state.site}`);
  if (name !== state.site) return;
  await call("DELETE", here());
  state.site = null;
  $("site").hidden = true;
  await showSites();
  say(`Site ${name} is deleted.`);
  $("main").focus();
}

// Files of a folder that was dropped, whose entries come in parts of a hundred.
async function droppedFiles(items) {
  const files = [];
  const walk = async (entry) => {
    if (entry.isFile) files.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
    else for (const reader = entry.createReader(); ;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) return;
      for (const one of some) await walk(one);
    }
  };
  for (const entry of [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean)) await walk(entry);
  return files;
}

$("create").addEventListener("submit", does(create));
for (const id of ["folder", "files"]) {
  $(id).addEventListener("change", does(async (event) => {
    const chosen = [...event.target.files];
    event.target.value = "";
    await addFiles(chosen);
  }));
}
$("drop").addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
$("drop").addEventListener("dragleave", () => $("drop").classList.remove("over"));
$("drop").addEventListener("drop", does(async (event) => {
  $("drop").classList.remove("over");
  await addFiles(await droppedFiles(event.dataTransfer.items));
}));
$("changed").addEventListener("change", showPredictions);
$("more").addEventListener("click", () => { state.shown += SHOWN; showPredictions(); });
$("suggest").addEventListener("click", does(suggest));
$("labels").addEventListener("submit", does(useLabels));
$("export").addEventListener("click", does(download));
$("rollback").addEventListener("click", does(async () => {
  await showSite(await call("POST", here("/rollback"), { json: {} }));
  await showSites();
  say("The last step is undone.");
}));
$("delete").addEventListener("click", does(remove));
does(showSites)();
