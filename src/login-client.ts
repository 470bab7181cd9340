/** The OAuth client that `posthorn login` is. What it gets is a paired device, not an app. */
export const LOGIN_CLIENT = 'posthorn-cli';
