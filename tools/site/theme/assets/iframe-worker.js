/* Browsers refuse workers on pages that were opened from a disk. Search then runs in a hidden frame instead of one. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.early = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inner.document.createElement("script");
      script.src = new URL(address, location.href).href;
      script.onload = () => {
        for (const data of this.early.splice(0)) this.give(data);
        this.early = null;
      };
      this.inner.document.body.append(script);
    }
    give(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.early) this.early.push(data);
      else this.give(data);
    }
    terminate() {
      this.inner.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
