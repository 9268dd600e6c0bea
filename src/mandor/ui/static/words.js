// Texts of the panel by language; the English text is the key.

const INDONESIAN = {
  "Overview": "Ikhtisar", "Nodes": "Node", "Workloads": "Beban kerja", "Instances": "Instans", "Plan": "Rencana",
  "Events": "Peristiwa", "Settings": "Pengaturan", "Search": "Cari", "Found": "Ditemukan", "node": "node", "instance": "instans", "task": "tugas", "spare": "cadangan", "Log in": "Masuk", "Log out": "Keluar",
  "Token": "Token", "The token that `mandor token create` printed": "Token yang dicetak oleh `mandor token create`",
  "Ready nodes": "Node siap", "Running": "Berjalan", "Waiting": "Menunggu", "Ready instances": "Instans siap",
  "Processors": "Prosesor", "Memory": "Memori", "Colour by": "Warna menurut", "workload": "beban kerja", "phase": "fase",
  "priority": "prioritas", "pressure": "tekanan", "Recent events": "Peristiwa terbaru", "No events yet.": "Belum ada peristiwa.",
  "Name": "Nama", "Namespace": "Namespace", "Phase": "Fase", "Pool": "Pool", "Engines": "Engine", "Type": "Jenis",
  "Ready": "Siap", "Desired": "Diinginkan", "Restarts": "Mulai ulang", "Node": "Node", "Message": "Pesan", "Age": "Usia",
  "Cordon": "Cordon", "Uncordon": "Uncordon", "Drain": "Kosongkan", "Scale": "Skalakan", "Restart": "Mulai ulang", "Restart requested.": "Permintaan mulai ulang dikirim.",
  "Undo": "Batalkan perubahan", "Pause": "Jeda", "Resume": "Lanjutkan", "Promote": "Lanjutkan canary", "Replicas": "Replika",
  "Rollout": "Rollout", "Logs": "Log", "Follow": "Ikuti", "Explanation": "Penjelasan", "requested": "diminta", "Reasons by node": "Alasan per node",
  "Suggested changes": "Saran perubahan", "Scores": "Skor", "Preview": "Pratinjau", "Simulate": "Simulasikan", "Stop": "Hentikan", "Minutes": "Menit", "line": "baris",
  "Simulation running…": "Simulasi berjalan…", "Cancelled.": "Dibatalkan.", "Evicted": "Diusir", "Down (s)": "Mati (d)",
  "All expectations are met.": "Semua ekspektasi terpenuhi.", "Some expectations are not met.": "Sebagian ekspektasi tidak terpenuhi.", "Apply": "Terapkan",
  "A manifest, or a Compose, Kubernetes or Nomad file": "Manifes, atau berkas Compose, Kubernetes, atau Nomad",
  "Paste or drop a file; nothing changes until you apply it.": "Tempel atau seret berkas ke sini; tidak ada yang berubah sebelum diterapkan.",
  "Every instance would get a node.": "Semua instans akan mendapat node.", "Some instances would stay pending.": "Sebagian instans akan tetap menunggu.",
  "Would be placed": "Akan ditempatkan", "Would stay pending": "Akan tetap menunggu", "Would be evicted": "Akan diusir", "Not imported": "Tidak diimpor",
  "Theme": "Tema", "Language": "Bahasa", "system default": "mengikuti sistem", "light": "terang", "dark": "gelap",
  "Keys": "Tombol", "No items.": "Tidak ada data.", "Connected": "Tersambung", "Connecting…": "Menyambung…",
  "Logged in as": "Masuk sebagai", "Skip to the content": "Langsung ke isi", "shortcuts": "pintasan", "Labels": "Label", "Address": "Alamat", "all": "semua",
  "History": "Riwayat", "Release": "Rilis", "Task": "Tugas", "Used": "Terpakai", "Save": "Simpan", "Cluster map": "Peta klaster",
  "Bare metal": "Mesin fisik", "Tasks": "Tugas", "Spares": "Mesin cadangan", "Spare": "Mesin cadangan", "State": "Status", "Machine": "Mesin fisik",
  "Machines": "Mesin", "Cluster": "Klaster", "Dedicated": "Khusus", "Rules": "Aturan", "Virtual machine": "Mesin virtual",
  "Failed attempts": "Percobaan gagal", "Cancel": "Batalkan", "Release machine": "Lepaskan mesin", "Release machines": "Lepaskan mesin",
  "Shell": "Shell", "Open a shell": "Buka shell", "Output": "Keluaran", "Close": "Tutup",
  "All keys are sent to the program; press Shift+Tab to leave.": "Semua tombol dikirim ke program; tekan Shift+Tab untuk keluar.",
  "The connection is closed.": "Sambungan ditutup.", "Exit status": "Status keluar",
  "This cannot be undone. Continue?": "Tindakan ini tidak dapat dibatalkan. Lanjutkan?",
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

// Parses a quantity of the API such as `50m`, `2`, `256Mi` or `2GB`; absent: 0.
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
