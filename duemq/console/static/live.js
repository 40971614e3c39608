// Shows on a live page that its figures are no longer updated, and hides it when they are again.
function showStale(isStale) {
  const notice = document.getElementById("stale");
  if (notice) notice.hidden = !isStale;
}
document.addEventListener("htmx:sseError", () => showStale(true));
document.addEventListener("htmx:sseOpen", () => showStale(false));
