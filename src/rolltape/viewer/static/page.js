// What every script of the viewer uses. Text is only ever set as text, never as markup.
"use strict";
const rolltape = {};

rolltape.page = (() => {
  const main = document.getElementById("main");
  const inFile = document.body.hasAttribute("data-file");

  function tag(name, className, text) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }
  const read = (element) => JSON.parse(element.textContent);
  const short = (value, digits = 5) => (typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value));

  // Where we are: in a file of all pages the address is behind the #.
  function place() {
    if (!inFile) return { path: location.pathname, query: new URLSearchParams(location.search) };
    const [path, query] = (location.hash.slice(1) || "/").split("?");
    return { path, query: new URLSearchParams(query || "") };
  }
  function setQuery(name, value) {
    const { path, query } = place();
    if (value) query.set(name, value);
    else query.delete(name);
    const text = query.toString();
    history.replaceState(history.state, "", (inFile ? "#" : "") + path + (text ? "?" + text : ""));
  }
  function go(address) {
    if (address) location.href = address;
  }

  return { main, inFile, tag, read, short, place, setQuery, go };
})();
