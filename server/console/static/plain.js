// The session, and what GetBroker says.

async function send(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const fields = answer.status === 204 ? {} : await answer.json();
  if (!answer.ok) throw new Error(`${fields.code}: ${fields.message}`);
  return fields;
}

function show(facts) {
  const rows = Object.entries(facts).map(([name, value]) => {
    const row = document.createElement("tr");
    row.append(Object.assign(document.createElement("th"), { textContent: name }));
    row.append(Object.assign(document.createElement("td"), { textContent: String(value ?? "unknown") }));
    return row;
  });
  document.getElementById("facts").replaceChildren(...rows);
}

async function load() {
  const problem = document.getElementById("problem");
  problem.textContent = "";
  try {
    const session = await (await fetch("/api/session")).json();
    const mustLogIn = session.needsLogin && session.user === null;
    document.getElementById("login").hidden = !mustLogIn;
    show(mustLogIn ? { version: session.version } : await send("POST", "/api/call/AdminService/GetBroker", {}));
  } catch (error) {
    problem.textContent = error.message;
  }
}

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await send("POST", "/api/session", Object.fromEntries(new FormData(event.target)));
    await load();
  } catch (error) {
    document.getElementById("problem").textContent = error.message;
  }
});

load();
