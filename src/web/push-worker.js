// Runs in the owner's browser, also while no page is open: shows that requests wait. A push says how many, and no more.

self.addEventListener('install', () => self.skipWaiting());

self.addEventListener('push', (event) => {
  event.waitUntil(
    self.registration.showNotification('Posthorn', {
      body: sentenceOf(event.data),
      tag: 'requests', // takes the place of the one before
      renotify: true,
    }),
  );
});

self.addEventListener('notificationclick', (event) => {
  event.notification.close();
  event.waitUntil(openInbox());
});

/** Browsers want something to be shown for each push, also for one that cannot be read. */
function sentenceOf(data) {
  let waiting = 1;
  try {
    waiting = Number(data.json().waiting);
  } catch {}
  return waiting > 1 ? `${waiting} requests wait for you` : 'A request waits for you';
}

async function openInbox() {
  const windows = await self.clients.matchAll({ type: 'window', includeUncontrolled: true });
  const inbox = windows.find(({ url }) => new URL(url).pathname === '/owner');
  await (inbox ? inbox.focus() : self.clients.openWindow('/owner'));
}
