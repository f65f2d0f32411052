// Search where a page is a file: browsers start no workers there, so the worker runs in a frame of the page instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      const text = `<script>
        var importScripts = (...scripts) => scripts.reduce((done, script) => done.then(() => new Promise((loaded) => {
          const element = document.createElement("script")
          element.src = script
          element.onload = loaded
          document.body.appendChild(element)
        })), Promise.resolve())
        var postMessage = (data) => parent.postMessage(data, "*")
      <\/script><script src="${script}"><\/script>`
      this.ready = new Promise((loaded) => this.frame.addEventListener("load", loaded, { once: true }))
      inside.document.open()
      inside.document.write(`<!doctype html><body>${text}</body>`)
      inside.document.close()
      window.addEventListener("message", (event) => {
        if (event.source !== inside) return
        const message = new MessageEvent("message", { data: event.data })
        this.onmessage?.(message)
        this.dispatchEvent(message)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
