// The script of the portal: keeps a page current, and sends what its buttons ask for.
// All text from the server becomes text nodes or parsed, inert markup; nothing is ever evaluated.

const main = document.getElementById("main");
const live = document.getElementById("live");
const said = document.getElementById("said");
const dialog = document.getElementById("ask");
const csrf = document.querySelector('meta[name="csrf"]')?.content ?? "";

// -- keep the page current ------------------------------------------------------------------------

let asking = false;

async function refresh() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Portal-Fragment": "1" }, cache: "no-store" });
    if (answer.status === 401) location.reload();
    if (!answer.ok) return;
    morph(main, new DOMParser().parseFromString(await answer.text(), "text/html").body);
  } catch {
    show("offline", "bad");
  } finally {
    asking = false;
  }
}

function show(text, kind = "") {
  if (live.textContent !== text) live.textContent = text;
  live.className = `live ${kind}`;
}

let polling = 0;

function follow() {
  const source = new EventSource("/api/v1/events");
  source.addEventListener("snapshot", () => {
    clearInterval(polling);
    polling = 0;
    show("live", "good");
    refresh();
  });
  source.addEventListener("problem", () => show("the store does not answer", "bad"));
  source.addEventListener("error", () => {
    poll();
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  });
}

function poll() {
  if (polling) return;
  show("polling", "warn");
  polling = setInterval(refresh, 1000);
}

// Change the tree `old` into `fresh` and keep what is the same: focus, selection, open details, typed text.
function morph(old, fresh) {
  const keyed = new Map();
  for (const node of old.children) if (node.dataset.key !== undefined) keyed.set(node.dataset.key, node);
  let at = old.firstChild;
  for (const want of [...fresh.childNodes]) {
    const key = want.dataset?.key;
    const have = key === undefined ? at : keyed.get(key);
    if (!have || !alike(have, want)) {
      old.insertBefore(want, at);
      continue;
    }
    if (have === at) at = at.nextSibling;
    else old.insertBefore(have, at);
    update(have, want);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function alike(one, other) {
  return one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

function update(have, want) {
  if (have.nodeType !== Node.ELEMENT_NODE) {
    if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
    return;
  }
  if (have === document.activeElement && have.matches("input, select, textarea")) return;
  for (const { name, value } of [...want.attributes])
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  for (const { name } of [...have.attributes])
    if (!want.hasAttribute(name) && name !== "open") have.removeAttribute(name);
  if (!have.matches("select")) morph(have, want);
}

// -- act ------------------------------------------------------------------------------------------

const LABELS = { reason: "Reason (optional)", tenant: "Tenant", payload: "Payload (JSON)" };

function ask(button) {
  const fields = (button.dataset.fields ?? "").split(" ").filter(Boolean);
  document.getElementById("ask-title").textContent = button.dataset.title;
  document.getElementById("ask-text").textContent = button.dataset.text;
  document.getElementById("ask-yes").textContent = button.textContent;
  document.getElementById("ask-fields").replaceChildren(...fields.map(field));
  dialog.returnValue = "no";
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") act(button).catch((error) => tell(String(error), "bad"));
  };
  dialog.showModal();
}

function field(name) {
  const label = document.createElement("label");
  label.textContent = LABELS[name];
  const input = document.createElement(name === "payload" ? "textarea" : "input");
  input.name = name;
  if (name === "tenant" && document.getElementById("ask-title").textContent.startsWith("Pause")) input.required = true;
  label.append(input);
  return label;
}

async function act(button) {
  const body = JSON.parse(button.dataset.body ?? "{}");
  for (const input of dialog.querySelectorAll("[name]")) {
    if (input.value === "") continue;
    try {
      body[input.name] = input.name === "payload" ? JSON.parse(input.value) : input.value;
    } catch {
      return tell("The payload is not JSON; nothing was sent.", "bad");
    }
  }
  const paths = button.dataset.many
    ? selected().map((id) => `/api/v1/dead-letters/${encodeURIComponent(id)}/${button.dataset.many}`)
    : [button.dataset.post];
  if (!paths.length) return tell("Select some first.", "warn");
  const failed = [];
  for (const [done, path] of paths.entries()) {
    if (paths.length > 1) tell(`${done} of ${paths.length} done`);
    const error = await post(path, body);
    if (error) failed.push(error);
  }
  if (failed.length) tell(paths.length > 1 ? `${failed.length} of ${paths.length} failed: ${failed[0]}` : failed[0], "bad");
  else tell(paths.length > 1 ? `All ${paths.length} done.` : "Done.", "good");
  refresh();
}

async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) return found.error ?? `The service answered ${answer.status}.`;
  const handle = found.handles?.[0] ?? found;
  return ["failed", "dlq"].includes(handle.status) ? `It failed again: ${handle.error ?? handle.status}` : "";
}

function selected() {
  return [...main.querySelectorAll('input[name="letter"]:checked')].map((each) => each.value);
}

let clearing = 0;

function tell(text, kind = "") {
  said.textContent = text;
  said.className = kind;
  clearTimeout(clearing);
  clearing = setTimeout(() => said.replaceChildren(), 8000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-post], [data-many]");
  if (button) ask(button);
  if (event.target.id === "export") {
    const ids = selected().map((id) => `id=${encodeURIComponent(id)}`);
    if (ids.length) location.assign(`/api/v1/dead-letters/export?${ids.join("&")}`);
    else tell("Select some first.", "warn");
  }
});

document.addEventListener("change", (event) => {
  if (event.target.id !== "all") return;
  for (const each of main.querySelectorAll('input[name="letter"]')) each.checked = event.target.checked;
});

document.addEventListener("visibilitychange", refresh);

if (live) follow();
