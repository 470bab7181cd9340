// Switches notifications of this browser on and off. The page has a sentence for each state; which of them is shown
// stands at the root of the document, where keeping the page fresh changes nothing.

const WORKER = '/owner/push-worker.js';
const { dataset: root } = document.documentElement;

/** Found anew each time, since the page is kept fresh. */
const section = () => document.getElementById('push').dataset;

async function readState() {
  if (!isSecureContext) return 'insecure';
  if (!('serviceWorker' in navigator && 'PushManager' in window && 'Notification' in window)) return 'unsupported';
  if (Notification.permission === 'denied') return 'blocked';
  const subscription = await findSubscription();
  // what a session before this one switched on, the server has forgotten
  return subscription !== null && (await hashOf(subscription.endpoint)) === section().known ? 'on' : 'off';
}

async function findSubscription() {
  const registration = await navigator.serviceWorker.getRegistration(WORKER);
  return (await registration?.pushManager.getSubscription()) ?? null;
}

/** As the server knows it, so that the address itself stands on no page. */
async function hashOf(endpoint) {
  const hash = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(endpoint));
  return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

async function switchOn() {
  if ((await Notification.requestPermission()) !== 'granted') return;
  const registration = await navigator.serviceWorker.register(WORKER);
  await navigator.serviceWorker.ready;
  // one of an earlier session, or for another key
  await (await registration.pushManager.getSubscription())?.unsubscribe();
  const subscription = await registration.pushManager.subscribe({
    userVisibleOnly: true,
    applicationServerKey: section().key,
  });
  const { endpoint, keys } = subscription.toJSON();
  try {
    await tell('PUT', { endpoint, p256dh: keys.p256dh, auth: keys.auth, server_key: section().key });
  } catch (error) {
    await subscription.unsubscribe();
    throw error;
  }
  section().known = await hashOf(endpoint);
}

async function switchOff() {
  await tell('DELETE');
  await (await findSubscription())?.unsubscribe();
  section().known = '';
}

async function tell(method, body) {
  const headers = body && { 'Content-Type': 'application/json' };
  const response = await fetch('/owner/v1/push', { method, headers, body: body && JSON.stringify(body) });
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
}

let isSwitching = false;

document.addEventListener('click', async ({ target }) => {
  if (isSwitching || target.closest('[data-push-switch]') === null) return;
  isSwitching = true;
  try {
    await (root.push === 'on' ? switchOff() : switchOn());
    root.push = await readState();
  } catch {
    root.push = 'failed';
  }
  isSwitching = false;
});

root.push = await readState();
