// Figures as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  const digits = unit > 2 && number < 10 ? 1 : 0;
  return `${number.toFixed(digits)} ${UNITS[unit]}`;
}

export function seconds(number) {
  if (number <= 0) return "0";
  if (number < 0.0995) return `${Math.max(1, Math.round(number * 1000))} ms`;
  if (number < 9.95) return `${number.toFixed(1)} s`;
  if (number < 120) return `${Math.round(number)} s`;
  if (number < 7200) return `${Math.round(number / 60)} min`;
  return `${Math.round(number / 3600)} h`;
}

export function count(number) {
  return number >= 100 ? String(Math.round(number)) : String(Math.round(number * 10) / 10);
}

// So that a name can't move what stands beside it, or hide what it is.
export function plain(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g, "\ufffd");
}
