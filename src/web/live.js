// Keeps the page as the server would show it now, without taking away what somebody types or stands on. Everything
// works without this, after a reload.

document.documentElement.classList.add('scripted');

const { live } = document.body.dataset;
/** What a stream of the owner's events says when a page may not be true any more. */
const NEWS = ['snapshot', 'proposal.created', 'proposal.decided', 'call.updated', 'call.input_required'];
/** Why a stream ends for good: the page may have to say so. */
const FINAL = ['revoked', 'expired', 'suspended'];
/** How often to look, in seconds: as long as no stream tells, and at the most. */
const TICK = 5;
/** How long to do without a stream after it was refused, in seconds; half as long again for some, so that all do not come at once. */
const REFUSED = 30;

/** Asks for the page again, and shows what changed. A session that ended leads to the page that says so. */
async function refresh() {
  const response = await fetch(live, {
    cache: 'no-store',
    redirect: 'manual',
    headers: { 'If-None-Match': `"${document.body.dataset.liveVersion}"` },
  });
  if (response.status !== 200) return;
  const wanted = new DOMParser().parseFromString(await response.text(), 'text/html');
  if (wanted.body.dataset.live === undefined) return location.reload();
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

let isAsking = false;
let isOutdated = false;

/** Never twice at once: news that comes meanwhile is asked for afterwards. */
async function catchUp() {
  isOutdated = true;
  if (isAsking) return;
  isAsking = true;
  while (isOutdated) {
    isOutdated = false;
    await refresh().catch(() => {}); // the server is away: the next one will tell
  }
  isAsking = false;
}

let stream = null;
let refusedUntil = 0;

/**
 * Hears of changes. A stream that broke off comes back by itself, when the server said it should; one that is refused
 * (there are eight for a browser) does not, and the page looks instead.
 */
function listen() {
  const opened = new EventSource('/owner/v1/events');
  stream = opened;
  for (const kind of NEWS) opened.addEventListener(kind, catchUp);
  opened.addEventListener('stream.closing', ({ data }) => {
    if (FINAL.includes(JSON.parse(data).reason)) catchUp();
  });
  opened.addEventListener('error', () => {
    if (opened.readyState !== EventSource.CLOSED || stream !== opened) return;
    stream = null;
    refusedUntil = Date.now() + REFUSED * (1000 + Math.random() * 500);
  });
}

let waited = 0;

/** What no event tells, such as who is live, or how far messages got, is looked for as often as the page says. */
function look() {
  if (document.hidden) return;
  if (stream === null && Date.now() >= refusedUntil) listen();
  waited += TICK;
  const { liveSeconds = 'Infinity' } = document.body.dataset;
  if (stream?.readyState === EventSource.OPEN && waited < Number(liveSeconds)) return;
  waited = 0;
  catchUp();
}

/** Only while somebody looks. */
function meetReader() {
  if (!document.hidden) {
    catchUp();
    if (stream === null) listen();
  } else {
    stream?.close();
    stream = null;
  }
}

if (live !== undefined) {
  if (!document.hidden) listen();
  setInterval(look, TICK * 1000);
  document.addEventListener('visibilitychange', meetReader);
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
