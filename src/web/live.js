// Keeps the page as the server would show it now, without taking away what somebody types or stands on. Everything
// works without this, after a reload.

document.documentElement.classList.add('scripted');

const { live, liveSeconds } = document.body.dataset;
let version = '';

/** Asks for the page again, and shows what changed. A session that ended leads to the page that says so. */
async function refresh() {
  const response = await fetch(live, {
    cache: 'no-store',
    redirect: 'manual',
    headers: version === '' ? {} : { 'If-None-Match': version },
  });
  if (response.status !== 200) return;
  const wanted = new DOMParser().parseFromString(await response.text(), 'text/html');
  if (wanted.body.dataset.live === undefined) return location.reload();
  version = response.headers.get('ETag') ?? '';
  document.title = wanted.title;
  morph(document.body, wanted.body);
}

/** Makes a node like another, and keeps it, its focus and what was typed into it. */
function morph(node, wanted) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  if (node.nodeType !== Node.ELEMENT_NODE || node.isEqualNode(wanted)) return;
  for (const { name, value } of wanted.attributes)
    if (!isTheReaders(node, name) && node.getAttribute(name) !== value) node.setAttribute(name, value);
  for (const { name } of [...node.attributes])
    if (!isTheReaders(node, name) && !wanted.hasAttribute(name)) node.removeAttribute(name);
  morphChildren(node, wanted);
}

/** What belongs to whoever reads the page: which parts are open, what stands in fields. */
function isTheReaders(node, attribute) {
  return attribute === 'open' || (['value', 'checked'].includes(attribute) && node.type !== 'hidden');
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id : '');

/** Children with an id are found by it, so that one more before them moves none; others by their place. */
function morphChildren(parent, wantedParent) {
  const wantedKeys = new Set([...wantedParent.children].map(keyOf));
  for (const child of [...parent.children]) if (keyOf(child) !== '' && !wantedKeys.has(keyOf(child))) child.remove();
  let place = parent.firstChild;
  const next = () => {
    const passed = place;
    place = place.nextSibling;
    return passed;
  };
  for (const wanted of [...wantedParent.childNodes]) {
    const key = keyOf(wanted);
    if (key === '') {
      if (place !== null && keyOf(place) === '' && place.nodeName === wanted.nodeName) morph(next(), wanted);
      else parent.insertBefore(wanted, place);
      continue;
    }
    const kept = [...parent.children].find((child) => keyOf(child) === key && child.nodeName === wanted.nodeName);
    if (kept === undefined) {
      parent.insertBefore(wanted, place);
      continue;
    }
    while (place !== null && place !== kept && keyOf(place) === '') next().remove();
    if (place === kept) next();
    else parent.insertBefore(kept, place);
    morph(kept, wanted);
  }
  while (place !== null) next().remove();
}

/** Only while somebody looks, and never twice at once. */
async function keepFresh() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, Number(liveSeconds) * 1000));
    if (!document.hidden) await refresh().catch(() => {}); // the server is away: the next one will tell
  }
}

if (live !== undefined) {
  keepFresh();
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) refresh().catch(() => {});
  });
}

document.addEventListener('click', async ({ target }) => {
  const button = target.closest('button[data-copy]');
  if (button === null) return;
  const source = document.getElementById(button.dataset.copy);
  getSelection().selectAllChildren(source);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Selected: copy it now'; // a page that is neither local nor over TLS may not copy
  }
});

// A number of hours is only meant if it is chosen, so whoever types one chooses it.
document.addEventListener('input', ({ target }) => {
  if (target.dataset.chooses) document.getElementById(target.dataset.chooses).checked = true;
});
