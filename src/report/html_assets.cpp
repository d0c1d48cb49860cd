#include "report/html_assets.h"

namespace trimtab::report {

std::string_view html_style() {
  // Colours are variables, so that one rule turns a page dark. The series' colours keep a contrast of 3 : 1
  // or more to either background; levels of heat grow away from the background.
  return R"css(:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d5dae0;--card:#f6f8fa;
--good:#116329;--c0:#0969da;--c1:#c2410c;--c2:#15803d;--c3:#a21caf;--c4:#946200;--c5:#0e7490;--c6:#cf222e;
--c7:#6b7280;--h0:#eef3f9;--h1:#dbe8f5;--h2:#c2d9ee;--h3:#a3c6e5;--h4:#7fb0da;--h5:#5c97cd;--h6:#3e7ebd;
--h7:#2664a8;--h8:#154b8b;--h9:#08306b}@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;
--dim:#9198a1;--line:#30363d;--card:#151b23;--good:#56d364;--c0:#58a6ff;--c1:#ff9d5c;--c2:#56d364;
--c3:#e48bf0;--c4:#e3b341;--c5:#4fd0e0;--c6:#ff7b72;--c7:#9da7b3;--h0:#131c27;--h1:#15283c;--h2:#163552;
--h3:#17446b;--h4:#1a5585;--h5:#2168a0;--h6:#2e7fbd;--h7:#4a9ad6;--h8:#77b8ea;--h9:#b8dcfb}}*{
box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:0 16px 64px;background:var(--bg);
color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}h1{
font-size:1.6rem;line-height:1.25;margin:28px 0 4px}h2{font-size:1.2rem;margin:40px 0 8px;
padding-top:12px;border-top:1px solid var(--line)}h3{font-size:1rem;margin:20px 0 6px}p{margin:6px 0;
max-width:80ch}header p,.remark{color:var(--dim)}.remark{font-size:.87rem}nav{display:flex;flex-wrap:wrap;
gap:4px 16px;margin-top:10px}a{color:var(--c0)}.grid{display:grid;
grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:14px;margin:12px 0;
align-items:start}figure{margin:0;padding:12px;background:var(--card);border:1px solid var(--line);
border-radius:8px;min-width:0}figcaption{font-weight:600;line-height:1.35}figcaption small{
font-weight:400;color:var(--dim);margin-left:6px}figure .remark{margin:4px 0 0}.legend{display:flex;
flex-wrap:wrap;gap:2px 14px;margin:4px 0;padding:0;list-style:none;font-size:.85rem}.legend i{
display:inline-block;width:14px;height:10px;border-radius:2px;margin-right:5px}.legend i.dash{height:0;
border-top:2px dashed;background:none!important;vertical-align:middle}.scale{display:flex;
align-items:center;gap:6px;margin:4px 0;font-size:.85rem;color:var(--dim)}.scale span{display:flex}
.scale i{width:14px;height:10px}svg{display:block;width:100%;height:auto;touch-action:pan-y}svg text{
font-size:12px;fill:var(--dim)}.axis{stroke:var(--line);stroke-width:1;fill:none}.line{fill:none;
stroke-width:1.8;stroke-linejoin:round}.dashed{stroke-dasharray:5 4}.mark{fill:none;stroke:var(--fg);
stroke-width:1.5;stroke-dasharray:1 3}.cursor{stroke:var(--fg);
stroke-width:1;opacity:.5;visibility:hidden}.scroll{overflow-x:auto;margin:8px 0}table{
border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;min-width:100%}th,td{
text-align:right;padding:5px 10px;border-bottom:1px solid var(--line);white-space:nowrap}th{
color:var(--dim);font-weight:600}.left{text-align:left}td:first-child,th:first-child{padding-left:0}.best{
font-weight:700;color:var(--good)}.bars{display:grid;
grid-template-columns:minmax(90px,max-content) 1fr max-content;gap:5px 10px;align-items:center;
font-size:.9rem;margin:8px 0}.bars b{font-weight:400;overflow-wrap:anywhere}.track{position:relative;
display:flex;height:18px;border-radius:3px;overflow:hidden;background:var(--line)}.track span{height:100%}
.track .was{position:absolute;left:0;top:0;border-right:2px dashed var(--fg);background:none}.bars em{
font-style:normal;color:var(--dim);text-align:right;font-variant-numeric:tabular-nums}details{
margin:10px 0}summary{cursor:pointer;font-weight:600;padding:4px 0}#tip{position:fixed;z-index:2;
pointer-events:none;max-width:min(340px,92vw);padding:6px 10px;border:1px solid var(--line);
border-radius:6px;background:var(--bg);color:var(--fg);font-size:.82rem;white-space:pre-line;
box-shadow:0 2px 10px #0004}.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{
stroke:var(--c3)}.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}.k0{
fill:var(--c0);background:var(--c0);color:var(--c0)}.k1{fill:var(--c1);background:var(--c1);
color:var(--c1)}.k2{fill:var(--c2);background:var(--c2);color:var(--c2)}.k3{fill:var(--c3);
background:var(--c3);color:var(--c3)}.k4{fill:var(--c4);background:var(--c4);color:var(--c4)}.k5{
fill:var(--c5);background:var(--c5);color:var(--c5)}.k6{fill:var(--c6);background:var(--c6);
color:var(--c6)}.k7{fill:var(--c7);background:var(--c7);color:var(--c7)}.h0{fill:var(--h0);
background:var(--h0)}.h1{fill:var(--h1);background:var(--h1)}.h2{fill:var(--h2);background:var(--h2)}.h3{
fill:var(--h3);background:var(--h3)}.h4{fill:var(--h4);background:var(--h4)}.h5{fill:var(--h5);
background:var(--h5)}.h6{fill:var(--h6);background:var(--h6)}.h7{fill:var(--h7);background:var(--h7)}.h8{
fill:var(--h8);background:var(--h8)}.h9{fill:var(--h9);background:var(--h9)}@media print{
details:not([open])>*{display:block}figure{break-inside:avoid}}
)css";
}

std::string_view html_script() {
  // Values under the pointer or finger. Everything that it shows is drawn without it.
  return R"js(const tip=document.getElementById('tip');
const say=v=>v===null?'none':Math.abs(v)>=1e4?Math.round(v).toLocaleString('en'):String(v);
for(const svg of document.querySelectorAll('svg[data-chart]')){
  const d=JSON.parse(svg.dataset.chart),cursor=svg.querySelector('.cursor');
  const hide=()=>{tip.hidden=true;if(cursor)cursor.style.visibility='hidden'};
  const show=e=>{
    const box=svg.getBoundingClientRect(),scale=d.width/box.width;
    const x=(e.clientX-box.left)*scale,y=(e.clientY-box.top)*scale;
    if(x<d.left||x>d.right||y<d.top||y>d.bottom)return hide();
    const n=d.columns,i=Math.min(n-1,Math.floor((x-d.left)/(d.right-d.left)*n));
    const when=d.at?d.at[i]:'from '+say(+(d.first+i*d.step).toPrecision(4))+' '+d.x;
    let text=when;
    if(d.rows){
      const r=Math.min(d.rows.length-1,Math.floor((y-d.top)/(d.bottom-d.top)*d.rows.length));
      const v=d.values[r][i];
      text=d.rows[r]+', '+when+'\n'+(d.kinds?d.kinds[v]??'none':say(v)+' '+d.unit);
    }else d.names.forEach((name,s)=>{text+='\n'+name+': '+say(d.values[s][i])+' '+d.unit});
    tip.textContent=text;tip.hidden=false;
    if(cursor){
      const at=d.left+(i+.5)/n*(d.right-d.left);
      cursor.setAttribute('x1',at);cursor.setAttribute('x2',at);cursor.style.visibility='visible';
    }
    const w=tip.offsetWidth,h=tip.offsetHeight;
    tip.style.left=Math.max(4,Math.min(e.clientX+14,innerWidth-w-4))+'px';
    tip.style.top=(e.clientY+18+h>innerHeight?Math.max(4,e.clientY-h-14):e.clientY+18)+'px';
  };
  for(const event of ['pointermove','pointerdown'])svg.addEventListener(event,show);
  svg.addEventListener('pointerleave',hide);
}
)js";
}

}  // namespace trimtab::report
