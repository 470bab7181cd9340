export interface RecentMap<Value> {
  get(key: string): Value | undefined;
  set(key: string, value: Value): void;
  delete(key: string): void;
}

/** A map of bounded size: what was used longest ago goes first. */
export function createRecentMap<Value>(size: number): RecentMap<Value> {
  const values = new Map<string, Value>();
  const put = (key: string, value: Value) => {
    values.delete(key);
    values.set(key, value);
  };
  return {
    get(key) {
      const value = values.get(key);
      if (value !== undefined) put(key, value);
      return value;
    },
    set(key, value) {
      put(key, value);
      const oldest = values.size > size ? values.keys().next().value : undefined;
      if (oldest !== undefined) values.delete(oldest);
    },
    delete: (key) => void values.delete(key),
  };
}
