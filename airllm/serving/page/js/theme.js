// Sets the chosen theme before the first paint; a module would run after it.
"use strict";

(() => {
  try {
    const chosen = localStorage.getItem("airllm.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // The browser is set to store nothing, so no theme was chosen.
  }
})();
