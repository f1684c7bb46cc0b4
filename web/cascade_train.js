// What the browser shows of the pack's nodes: warnings as toasts, texts on the node that wrote them, colours of
// its links. Nothing that a prompt depends on lives here.
import { app } from "/scripts/app.js";
import { api } from "/scripts/api.js";

const TITLE = "Cascade Train";
const TOGETHER = 1000; // ms within which warnings share a toast
const COLOURS = {
    CASCADE_MODELS: "#b39ddb",
    CASCADE_DATASET: "#7bc67e",
    CASCADE_TARGET: "#f0a35e",
    CASCADE_OPTIMIZER: "#c9b458",
    CASCADE_RUN: "#e57373",
    CASCADE_PROMPTS: "#64b5f6",
    LORA_MODEL: "#d98cb3",
};
const SHOW_TEXT = ["CascadeExportRun", "CascadeDatasetPreview"];

const waiting = { warn: [], info: [] };

function tell(severity, text) {
    const texts = waiting[severity];
    if (texts.includes(text)) return;
    texts.push(text);
    if (texts.length > 1) return; // the first has set the clock
    setTimeout(() => {
        const detail = texts.splice(0).join("\n");
        const toast = app.extensionManager?.toast;
        if (toast?.add) {
            toast.add({ severity, summary: TITLE, detail, life: 15000 });
        } else {
            console.warn(`${TITLE}: ${detail}`);
        }
    }, TOGETHER);
}

function paint() {
    const classic = app.canvas?.constructor?.link_type_colors;
    const slots = app.canvas?.default_connection_color_byType;
    for (const [type, colour] of Object.entries(COLOURS)) {
        if (classic) classic[type] ||= colour;
        if (slots) slots[type] ||= colour;
        const name = `--color-datatype-${type}`;
        const style = document.documentElement.style;
        if (!style.getPropertyValue(name)) style.setProperty(name, colour);
    }
    app.canvas?.setDirty?.(true, true);
}

function showText(node, lines) {
    const name = "cascade_text";
    let widget = node.widgets?.find((each) => each.name === name);
    if (!widget) {
        if (!node.addDOMWidget) return;
        const box = document.createElement("div");
        Object.assign(box.style, {
            font: "11px monospace",
            whiteSpace: "pre-wrap",
            overflowWrap: "anywhere",
            overflow: "auto",
            userSelect: "text",
            padding: "4px 6px",
            color: "var(--input-text, #ddd)",
            background: "var(--comfy-input-bg, #222)",
            borderRadius: "4px",
        });
        widget = node.addDOMWidget(name, "text", box, {
            serialize: false,
            hideOnZoom: false,
            getMinHeight: () => 48,
            getMaxHeight: () => 160,
            getValue: () => box.textContent,
            setValue: () => {},
        });
        widget.serialize = false;
    }
    widget.element.textContent = lines.join("\n");
    const [width, height] = node.size;
    node.setSize?.([width, Math.max(height, node.computeSize?.()[1] ?? height)]);
    app.canvas?.setDirty?.(true, true);
}

app.registerExtension({
    name: "CascadeTrain",
    setup() {
        for (const [kind, severity] of [["warning", "warn"], ["note", "info"]]) {
            api.addEventListener(`cascade.${kind}`, (event) => {
                const text = event?.detail?.text;
                if (text) tell(severity, text);
            });
        }
        paint();
        app.ui?.settings?.addEventListener?.("Comfy.ColorPalette.change", () => setTimeout(paint));
    },
    afterConfigureGraph: paint, // a colour palette that was loaded meanwhile has emptied the colours it lacks
    beforeRegisterNodeDef(nodeType, nodeData) {
        if (!SHOW_TEXT.includes(nodeData?.name)) return;
        const before = nodeType.prototype.onExecuted;
        nodeType.prototype.onExecuted = function (output) {
            before?.apply(this, arguments);
            const lines = output?.text;
            if (lines?.length) showText(this, [].concat(lines));
        };
    },
});
