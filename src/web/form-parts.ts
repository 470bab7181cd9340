import { type Html, html } from './html.ts';
import { durationInWords } from './words.ts';

// What several forms have. Each form carries the session's token, without which it is refused.

export function hiddenToken(formToken: string): Html {
  return html`<input type="hidden" name="form_token" value="${formToken}">`;
}

const OFFERED_HOURS = [24, 168, 720];

/** How long: one of three, or a number of hours. `unchanged` is the choice that says nothing. */
export function durationChoice(id: string, chosen: number | null, unchanged?: string): Html {
  const isOffered = chosen === null ? unchanged !== undefined : OFFERED_HOURS.includes(chosen);
  return html`<fieldset>
<legend>How long</legend>
<div class="row">
${unchanged !== undefined && html`<label class="choice"><input type="radio" name="duration" value=""${chosen === null && html` checked`}> ${unchanged}</label>`}
${OFFERED_HOURS.map(
  (hours) =>
    html`<label class="choice"><input type="radio" name="duration" value="${hours}"${hours === chosen && html` checked`}> ${durationInWords(hours)}</label>`,
)}
<span class="choice"><label class="choice"><input type="radio" id="${id}-other" name="duration" value="other"${!isOffered && html` checked`}> Other</label>
<input type="number" name="hours" min="1" max="720" value="${!isOffered && chosen}" aria-label="Hours" data-chooses="${id}-other"> hours</span>
</div>
</fieldset>`;
}

/** The hours of such a choice; undefined where nothing was to change. What is no number is left for the operation to refuse. */
export function readDuration(form: URLSearchParams): number | string | undefined {
  const choice = form.get('duration') ?? '';
  const hours = choice === 'other' ? (form.get('hours') ?? '') : choice;
  if (hours === '') return choice === 'other' ? '' : undefined;
  return /^\d{1,6}$/.test(hours) ? Number(hours) : hours;
}

interface Grave {
  action: string;
  formToken: string;
  /** What opens the question. */
  ask: string;
  consequence: Html | string;
  yes: string;
}

/** An act that cannot be undone, or not wholly: the button is behind a second look. */
export function graveAct({ action, formToken, ask, consequence, yes }: Grave): Html {
  return html`<details>
<summary class="grave">${ask}</summary>
<form class="stack" method="post" action="${action}">
${hiddenToken(formToken)}
<p>${consequence}</p>
<div class="actions"><button class="grave">${yes}</button></div>
</form>
</details>`;
}

/** One button that does one thing. */
export function act(action: string, formToken: string, word: string): Html {
  return html`<form method="post" action="${action}">${hiddenToken(formToken)}<button class="small">${word}</button></form>`;
}

/** Something to copy, with a button where there is a script. */
export function copyable(id: string, text: string): Html {
  return html`<div class="copied"><pre><code id="${id}">${text}</code></pre><button class="small" type="button" data-copy="${id}">Copy</button></div>`;
}

/** The switch for automatic approval, which stands on two pages. */
export function automaticApproval(action: string, formToken: string, isOn: boolean): Html {
  return html`<section class="card" aria-labelledby="automatic">
<div class="row apart"><h2 id="automatic">Automatic approval</h2>${
    isOn ? html`<span class="mark wait">On</span>` : html`<span class="mark off">Off</span>`
  }</div>
<p>${
    isOn
      ? 'Your agents start to talk with each other without asking you: for 7 days at most, up to 50 collaborations a day. What they start is on the Activity page.'
      : 'Whenever agents want to talk with each other for the first time, you are asked.'
  } Requests that wait already stay yours to decide.</p>
<form method="post" action="${action}">
${hiddenToken(formToken)}
<input type="hidden" name="value" value="${isOn ? 'off' : 'on'}">
<button>${isOn ? 'Switch off: ask me again' : 'Switch on: do not ask me'}</button>
</form>
</section>`;
}
