// Samples over all steps: lists that grow while the server reads, and notes on a sample.
"use strict";
rolltape.samples = (({ main }) => {
  // A list comes as far as it is known, again and again until it is complete.
  async function grow(box, fetchParts) {
    let last = null;
    for (;;) {
      let answer;
      try { answer = await (await fetch(box.dataset.grow)).json(); } catch { return; }
      if (!box.isConnected) return;
      if (answer.part !== last) {
        const texts = new Map([...box.querySelectorAll("[data-part][data-done]")].map((one) => [one.dataset.part, one]));
        last = answer.part;
        // A parsed document runs nothing, and the policy of the page allows no script of its own.
        box.replaceChildren(...new DOMParser().parseFromString(answer.part, "text/html").body.childNodes);
        for (const part of box.querySelectorAll("[data-part]")) {
          const known = texts.get(part.dataset.part);
          if (known) part.replaceWith(known);
        }
        fetchParts(box);
        for (const one of box.querySelectorAll(".scroll")) if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
      }
      if (answer.status) { const wait = document.createElement("p"); wait.className = "wait"; wait.textContent = answer.status; box.append(wait); last = null; }
      if (!answer.more) { box.dataset.done = "1"; return; }
      await new Promise((done) => setTimeout(done, 100));
    }
  }
  async function save(event) {
    const form = event.target.closest("form[data-note]");
    if (!form) return;
    event.preventDefault();
    const said = form.querySelector("[role=status]"), tags = form.elements.tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    said.textContent = "saving …";
    try {
      const answer = await fetch(form.dataset.note, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ note: form.elements.note.value, tags }) });
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.problem);
      form.elements.tags.value = told.tags.join(", ");
      said.textContent = told.note || told.tags.length ? "saved" : "taken back";
    } catch (error) { said.textContent = `not saved: ${error.message}`; }
  }
  main.addEventListener("submit", save);
  const ready = (fetchParts) => main.querySelectorAll("[data-grow]").forEach((box) => grow(box, fetchParts));

  return { ready };
})(rolltape.page);
