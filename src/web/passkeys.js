// Makes and uses passkeys. A form asks for one: data-passkey says where its question comes from, and what the browser
// answers goes into the form's own field, so that the server decides and says everything else.

const { credentials } = navigator;

if (window.PublicKeyCredential && credentials) document.documentElement.classList.add('passkeys');

const toBytes = (text) =>
  Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (character) => character.charCodeAt(0));
const toText = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer)))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');

const withBytes = (list = []) => list.map((each) => ({ ...each, id: toBytes(each.id) }));

function readCreation(options) {
  if (PublicKeyCredential.parseCreationOptionsFromJSON)
    return PublicKeyCredential.parseCreationOptionsFromJSON(options);
  return {
    ...options,
    challenge: toBytes(options.challenge),
    user: { ...options.user, id: toBytes(options.user.id) },
    excludeCredentials: withBytes(options.excludeCredentials),
  };
}

function readRequest(options) {
  if (PublicKeyCredential.parseRequestOptionsFromJSON) return PublicKeyCredential.parseRequestOptionsFromJSON(options);
  return {
    ...options,
    challenge: toBytes(options.challenge),
    allowCredentials: withBytes(options.allowCredentials),
  };
}

/** Written by hand: some password managers stand in for the browser and bring no toJSON. */
function writeAnswer({ id, type, response }) {
  const fields = ['clientDataJSON', 'attestationObject', 'authenticatorData', 'signature', 'userHandle'];
  const given = fields.filter((field) => response[field]);
  return JSON.stringify({
    id,
    rawId: id,
    type,
    response: Object.fromEntries(given.map((field) => [field, toText(response[field])])),
  });
}

/** What the server is told where there is no passkey: its own refusal, or how the browser calls it. */
async function askFor(form) {
  const { passkey: path, passkeyNew: isNew } = form.dataset;
  const response = await fetch(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' });
  const question = await response.json();
  if (!response.ok) return { problem: question.limit ?? question.error };
  const { options } = question;
  const credential =
    isNew === undefined
      ? await credentials.get({ publicKey: readRequest(options) })
      : await credentials.create({ publicKey: readCreation(options) });
  return { passkey: writeAnswer(credential) };
}

let isAsking = false;

document.addEventListener('submit', async (event) => {
  const form = event.target;
  if (form.dataset.passkey === undefined) return;
  event.preventDefault();
  if (isAsking) return;
  isAsking = true;
  const said = await askFor(form).catch(({ name }) => ({ problem: name }));
  isAsking = false;
  form.elements.passkey.value = said.passkey ?? '';
  form.elements.problem.value = said.problem ?? '';
  form.submit(); // which tells no listener
});
