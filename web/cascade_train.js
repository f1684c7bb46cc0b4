// Shows warnings of the pack's nodes (skipped pictures and the like) as toasts. Nothing that a prompt
// depends on lives here.
import { app } from "/scripts/app.js";
import { api } from "/scripts/api.js";

app.registerExtension({
    name: "CascadeTrain.Warnings",
    setup() {
        api.addEventListener("cascade.warning", (event) => {
            const text = event?.detail?.text;
            const toast = app.extensionManager?.toast;
            if (text && toast?.add) {
                toast.add({ severity: "warn", summary: "Cascade Train", detail: text, life: 15000 });
            } else if (text) {
                console.warn(`Cascade Train: ${text}`);
            }
        });
    },
});
