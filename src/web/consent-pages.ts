import { type Html, html } from './html.ts';
import { page } from './layout.ts';

export interface Consent {
  action: string;
  formToken: string;
  clientName: string;
  /** Where its answers go, as large as its name: anybody may take any name, and nobody another's host. */
  clientHost: string;
  /** Whether the app is on the computer of whoever looks at this, as far as its address says. */
  isHere: boolean;
  /** Where the app says what it is, if it says so at an address of its own. */
  documentHost: string | undefined;
  wantsMessaging: boolean;
  wantsFunctions: boolean;
  agents: { id: string; label: string }[];
}

/** What the owner is asked when an app wants to be connected. */
export function consentPage(consent: Consent): string {
  const { clientName, clientHost, isHere, documentHost } = consent;
  return page(
    'Connect an app?',
    html`<div class="card">
<p class="who">${clientName}</p>
<p class="who">${clientHost}</p>
<p class="quiet">${
      isHere
        ? 'The answer goes to a program on this computer. The name is what that program calls itself.'
        : 'The answer goes to this host. The name is what the app calls itself: trust the host, not the name.'
    }${documentHost === undefined ? '' : html` Described at ${documentHost}.`}</p>
</div>
<form method="post" action="${consent.action}">
<input type="hidden" name="form_token" value="${consent.formToken}">
${scopes(consent)}
${whichAgent(consent)}
${decision('Connect')}
</form>`,
  );
}

export interface DeviceConsent {
  action: string;
  formToken: string;
  userCode: string;
  label: string;
}

/** What the owner is asked when somebody types `posthorn login` somewhere. */
export function deviceConsentPage({ action, formToken, userCode, label }: DeviceConsent): string {
  return page(
    'Pair a machine?',
    html`<p>Somebody runs <code>posthorn login</code> and was shown this code. Go on only if it is you, and the same code:</p>
<p class="card code">${userCode}</p>
<p>Programs on that machine can then register agents and let them exchange messages with your other approved agents.
It gives no access to memory or sources. You can end it at any time under Connections.</p>
<form method="post" action="${action}">
<input type="hidden" name="form_token" value="${formToken}">
<input type="hidden" name="messaging" value="yes">
<label>Name of the machine <input type="text" name="label" value="${label}" maxlength="64" required></label>
${decision('Pair')}
</form>`,
  );
}

/** Where the code of a device is typed. */
export function enterCodePage(fields: { formToken: string; userCode: string; problem: string | undefined }): string {
  return page(
    'Pair a machine',
    html`${fields.problem && html`<p class="warning" role="alert">${fields.problem}</p>`}
<form method="post" action="/device">
<input type="hidden" name="xsrf" value="${fields.formToken}">
<input type="hidden" name="confirm" value="yes">
<p><label>The code that <code>posthorn login</code> shows
<input type="text" name="user_code" value="${fields.userCode}" autocomplete="off" autofocus required></label></p>
<p class="actions"><button class="main">Go on</button></p>
</form>`,
  );
}

export function devicePairedPage(): string {
  return page('Paired', html`<p>The machine is paired. You can close this page and go on there.</p>`);
}

function scopes({ wantsMessaging, wantsFunctions }: Consent): Html {
  return html`<fieldset>
<legend>What it may do</legend>
${
  wantsMessaging &&
  html`<label><input type="checkbox" name="messaging" value="yes" checked> Messaging: it exchanges messages with your other approved agents.</label>
<p class="quiet">This never grants access to memory or sources. With whom it may talk you decide for each collaboration.</p>`
}
${wantsFunctions && html`<label><input type="checkbox" name="functions" value="yes" checked> Functions: it calls functions that your agents offer.</label>`}
</fieldset>`;
}

function whichAgent({ agents, clientName }: Consent): Html {
  if (agents.length === 0) return html`<p class="quiet">It gets an agent and a mailbox of its own.</p>`;
  return html`<fieldset>
<legend>Which agent it is</legend>
${agents.map(
  ({ id, label }, index) =>
    html`<label><input type="radio" name="agent" value="${id}"${index === 0 && html` checked`}> ${label}${index === 0 && html` <small>as before</small>`}</label>`,
)}
<label><input type="radio" name="agent" value="new"> Another one, for another machine, with a mailbox of its own</label>
<label>Name of another one <input type="text" name="agent_label" value="${nextName(clientName, agents.length)}" maxlength="64"></label>
</fieldset>`;
}

function nextName(clientName: string, agents: number): string {
  return `${[...clientName].slice(0, 58).join('')} ${agents + 1}`;
}

function decision(yes: string): Html {
  return html`<p class="actions"><button class="main" name="decision" value="allow">${yes}</button>
<button name="decision" value="deny">Deny</button></p>`;
}
