// The selector of releases, and a banner on the pages of an old one. The list is in ../versions.js, beside the releases'
// folders, so that a later build reaches the pages of earlier ones. Without it the link to the list remains.
(() => {
  const select = document.getElementById("weft-release");
  const releases = window.weftReleases;
  if (!select || !Array.isArray(releases)) return;
  const { root, release } = select.dataset;
  const home = (version) => `${root}../${encodeURIComponent(version)}/index.html`;
  for (const version of releases) {
    select.add(new Option(`Weft ${version}`, version, false, version === release));
  }
  select.hidden = releases.length < 2;
  select.addEventListener("change", () => location.assign(home(select.value)));
  // A candidate such as 0.2.0rc1 is in the list, and no reader of 0.1.0 is sent to it.
  const newest = releases.find((version) => /^[0-9.]+$/.test(version));
  if (newest === undefined || releases.indexOf(release) <= releases.indexOf(newest)) return;
  const banner = document.createElement("div");
  banner.id = "weft-old-release";
  banner.setAttribute("role", "note");
  const link = document.createElement("a");
  link.href = home(newest);
  link.textContent = `Weft ${newest}`;
  banner.append(`This page is about Weft ${release}. The newest release is `, link, ".");
  document.querySelector("[role=main]")?.prepend(banner);
})();
