"use strict";
(function () {
  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);
  function nearest(xs, x) {
    var best = -1, gap = Infinity;
    for (var i = 0; i < xs.length; i++) {
      var d = xs[i] === null ? Infinity : Math.abs(xs[i] - x);
      if (d < gap) { gap = d; best = i; }
    }
    return best;
  }
  document.querySelectorAll("svg[data-chart]").forEach(function (svg) {
    var chart = JSON.parse(svg.dataset.chart), box = svg.viewBox.baseVal;
    var cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", 20);
    cursor.setAttribute("y2", box.height - 34);
    cursor.style.display = "none";
    svg.appendChild(cursor);
    svg.addEventListener("mousemove", function (event) {
      var frame = svg.getBoundingClientRect(), px = (event.clientX - frame.left) * box.width / frame.width;
      var a = chart.x[0], b = chart.x[1], share = (px - a) / (b - a);
      if (share < 0 || share > 1) { hide(); return; }
      var low = chart.x[2], high = chart.x[3];
      var x = chart.x[4] ? low * Math.pow(high / low, share) : low + share * (high - low);
      cursor.setAttribute("x1", px);
      cursor.setAttribute("x2", px);
      cursor.style.display = "";
      tip.textContent = "";
      var head = document.createElement("div");
      head.textContent = Number(x.toPrecision(4)) + " " + chart.xl;
      tip.appendChild(head);
      chart.s.forEach(function (line) {
        var at = nearest(line[2], x);
        if (at < 0 || line[3][at] === null) { return; }
        var row = document.createElement("div"), mark = document.createElement("i");
        mark.className = "s" + line[1];
        row.appendChild(mark);
        row.appendChild(document.createTextNode(line[0] + ": " + line[3][at] + " " + chart.yl));
        tip.appendChild(row);
      });
      tip.hidden = false;
      var left = event.clientX + 14;
      if (left + tip.offsetWidth > window.innerWidth - 8) { left = event.clientX - tip.offsetWidth - 14; }
      tip.style.left = left + "px";
      tip.style.top = event.clientY + 12 + "px";
    });
    function hide() { tip.hidden = true; cursor.style.display = "none"; }
    svg.addEventListener("mouseleave", hide);
  });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
