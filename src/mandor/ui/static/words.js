// What the panel says, in the reader's language: the English text is the key.

const INDONESIAN = {
  "Overview": "Ikhtisar", "Nodes": "Node", "Workloads": "Beban kerja", "Instances": "Instans", "Plan": "Rencana",
  "Events": "Peristiwa", "Settings": "Pengaturan", "Search": "Cari", "Found": "Ditemukan", "node": "node", "instance": "instans", "task": "tugas", "spare": "cadangan", "Log in": "Masuk", "Log out": "Keluar",
  "Token": "Token", "A token, as `mandor token create` prints it": "Token, seperti dicetak `mandor token create`",
  "Ready nodes": "Node siap", "Running": "Berjalan", "Waiting": "Menunggu", "Ready instances": "Instans siap",
  "Processors": "Prosesor", "Memory": "Memori", "Colour by": "Warna menurut", "workload": "beban kerja", "phase": "fase",
  "priority": "prioritas", "pressure": "tekanan", "Recent events": "Peristiwa terbaru", "Nothing has happened yet.": "Belum ada kejadian.",
  "Name": "Nama", "Namespace": "Namespace", "Phase": "Fase", "Pool": "Kelompok", "Engines": "Mesin", "Type": "Jenis",
  "Ready": "Siap", "Wanted": "Diminta", "Restarts": "Mulai ulang", "Node": "Node", "Says": "Keterangan", "Age": "Umur",
  "Cordon": "Tutup", "Uncordon": "Buka", "Drain": "Kosongkan", "Scale": "Ubah jumlah", "Restart": "Mulai ulang", "It is restarted.": "Sedang dimulai ulang.",
  "Undo": "Kembalikan", "Pause": "Jeda", "Resume": "Lanjutkan", "Promote": "Lanjutkan canary", "Count": "Jumlah",
  "Roll-out": "Peluncuran", "Logs": "Log", "Follow": "Ikuti", "Why": "Mengapa", "asked for": "diminta", "Why here, and why not elsewhere": "Mengapa di sini, dan mengapa tidak di tempat lain",
  "What would help": "Yang akan membantu", "Scores": "Nilai", "Rehearse": "Latih", "Simulate": "Simulasikan", "Stop": "Hentikan", "Minutes": "Menit", "line": "baris",
  "The simulation runs…": "Simulasi berjalan…", "It was called off.": "Dibatalkan.", "Evicted": "Diusir", "Down (s)": "Mati (d)",
  "Everything that is expected holds.": "Semua yang diharapkan terpenuhi.", "Not everything that is expected holds.": "Tidak semua yang diharapkan terpenuhi.", "Apply": "Terapkan",
  "A manifest, or a Compose, Kubernetes or Nomad file": "Manifes, atau berkas Compose, Kubernetes, atau Nomad",
  "Paste or drop a file; nothing changes until you apply it.": "Tempel atau letakkan berkas; tidak ada yang berubah sebelum diterapkan.",
  "Everything would have a node.": "Semua akan mendapat node.", "Not everything would have a node.": "Tidak semua akan mendapat node.",
  "Would be placed": "Akan ditempatkan", "Would wait": "Akan menunggu", "Would have to go": "Harus pergi", "Not taken over": "Tidak diambil alih",
  "Theme": "Tema", "Language": "Bahasa", "as the system": "mengikuti sistem", "light": "terang", "dark": "gelap",
  "Keys": "Tombol", "There is nothing here.": "Tidak ada apa-apa di sini.", "Connected": "Tersambung", "Connecting…": "Menyambung…",
  "You are": "Anda", "Skip to the content": "Langsung ke isi", "shortcuts": "pintasan", "Labels": "Label", "Address": "Alamat", "all": "semua",
  "History": "Riwayat", "Release": "Rilis", "Task": "Tugas", "Used": "Terpakai", "Save": "Simpan", "Cluster map": "Peta klaster",
  "Bare metal": "Mesin fisik", "Tasks": "Tugas", "Spares": "Cadangan", "Spare": "Cadangan", "State": "Keadaan", "Machine": "Mesin fisik",
  "Machines": "Mesin", "Cluster": "Klaster", "Dedicated": "Khusus", "Only where": "Hanya bila", "Virtual machine": "Mesin virtual",
  "Failed tries": "Percobaan gagal", "Cancel": "Batalkan", "Give back": "Kembalikan mesin", "Release machines": "Lepaskan mesin",
  "Shell": "Shell", "Open a shell": "Buka shell", "Output": "Keluaran", "Close": "Akhiri",
  "Every key goes to the program; Shift+Tab leaves it.": "Semua tombol dikirim ke program; Shift+Tab untuk keluar.",
  "The connection is closed.": "Sambungan ditutup.", "Exit status": "Status keluar",
  "This cannot be undone. Go on?": "Ini tidak dapat dibatalkan. Lanjutkan?",
};

let language = localStorage.getItem("mandor.language") || (navigator.language.startsWith("id") ? "id" : "en");

export const t = (text) => (language === "id" ? INDONESIAN[text] ?? text : text);
export const current = () => language;

export function speak(other) {
  language = other;
  localStorage.setItem("mandor.language", other);
  document.documentElement.lang = other;
}

export function age(at) {
  if (!at) return "-";
  const seconds = Math.max(0, Date.now() / 1000 - at);
  if (seconds < 90) return `${Math.round(seconds)}s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)}m`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)}h`;
  return `${Math.round(seconds / 86400)}d`;
}

// What the API writes as text: `50m`, `2`, `256Mi`, `2GB`; nothing: 0.
export function quantity(text) {
  const [, number, unit] = /^([\d.]+)(\D*)$/.exec(text ?? "0") ?? [null, "0", ""];
  const power = "kMGTPE".indexOf(unit[0] === "K" ? "k" : unit[0]) + 1;
  return Number(number) * (unit === "m" ? 0.001 : (unit[1] === "i" ? 1024 : 1000) ** power);
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}
