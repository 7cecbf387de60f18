// What the page draws: thumbnails, the map of sites, evidence over time. Text is set as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function shape(tag, attributes, title) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (title !== undefined) {
    const said = document.createElementNS("http://www.w3.org/2000/svg", "title");
    said.textContent = title;
    made.append(said);
  }
  return made;
}

// Everything but the title, which names the drawing.
function clear(svg) {
  svg.replaceChildren(svg.querySelector(":scope > title"));
}

function scale(values, from, to) {
  const low = Math.min(...values), high = Math.max(...values);
  return (value) => (high > low ? from + ((value - low) / (high - low)) * (to - from) : (from + to) / 2);
}

function drawMap(svg, model, current) {
  const training = Object.entries(model.training), here = Object.entries(model.sites);
  const points = [...training, ...here].map(([, point]) => point);
  const x = scale(points.map((p) => p[0]), 30, 370), y = scale(points.map((p) => p[1]), 270, 30);
  clear(svg);
  for (const [name, point] of training) {
    svg.append(shape("circle", { cx: x(point[0]), cy: y(point[1]), r: 4, class: "training" }, `training site ${name}`));
  }
  const named = training.length + here.length <= 30;
  for (const [name, point] of [...(named ? training : []), ...here.filter(([site]) => named || site === current)]) {
    const left = x(point[0]) > 300;
    const label = shape("text", { x: x(point[0]) + (left ? -8 : 8), y: y(point[1]) - 5, "text-anchor": left ? "end" : "start" });
    label.textContent = name.length > 24 ? `${name.slice(0, 23)}…` : name;
    svg.append(label);
  }
  for (const [name, point] of here) {
    const chosen = name === current ? " current" : "";
    svg.append(shape("circle", { cx: x(point[0]), cy: y(point[1]), r: 7, class: `here${chosen}` }, `site ${name}`));
  }
}

// Logarithms of evidence, the largest look after each window, and the alarm.
function drawEvidence(svg, history, threshold) {
  const looks = history.map((entry) => Math.max(...Object.entries(entry).filter(([name]) => name !== "images").map(([, value]) => value)));
  const logs = looks.map((value) => Math.log10(Math.max(value, 0.1))), alarm = Math.log10(threshold);
  const x = scale([0, ...history.map((entry) => entry.images)], 20, 580), y = scale([-1, alarm, ...logs], 165, 15);
  clear(svg);
  svg.append(shape("line", { x1: 20, x2: 580, y1: y(alarm), y2: y(alarm), class: "alarm" }, "alarm"));
  const line = history.map((entry, place) => `${x(entry.images)},${y(logs[place])}`).join(" ");
  svg.append(shape("polyline", { points: `${x(0)},${y(0)} ${line}` }));
}

const thumbnails = new Map(); // of files, made once

function thumbnail(file) {
  if (!thumbnails.has(file)) thumbnails.set(file, URL.createObjectURL(file));
  return thumbnails.get(file);
}

function forgetThumbnails() {
  for (const address of thumbnails.values()) URL.revokeObjectURL(address);
  thumbnails.clear();
}

// A card for an image: its thumbnail where this browser has the file, and lines below it.
function card(file, about, ...lines) {
  const made = $("picture").content.firstElementChild.cloneNode(true), image = made.querySelector("img");
  if (file) {
    image.src = thumbnail(file);
    image.alt = file.name;
    image.loading = "lazy";
    image.addEventListener("error", () => image.replaceWith(element("p", `${file.name} (no preview)`)));
  } else image.replaceWith(element("p", about, { class: "note" }));
  made.querySelector(":scope > p:last-of-type").append(...lines);
  return made;
}
